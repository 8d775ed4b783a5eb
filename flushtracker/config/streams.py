"""The names of the four streams, in configurations, topics and rows."""

from typing import Final

FRAGMENTS: Final = "fragments"
"""What was sent to which shape: from capture to the tracking job."""
FLUSHES: Final = "flushes"
"""How far each shape is durable: from the writers to the tracking job."""
SHAPE_CHANGES: Final = "shape_changes"
"""What each shape is sent: from capture to the writers."""
SHAPES: Final = "shapes"
"""The registry of shapes and tables: from capture to all who ask."""
