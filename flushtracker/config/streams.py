"""The names of the streams, in configurations, topics and rows."""

from typing import Final

FRAGMENTS: Final = "fragments"
"""Which changes were sent to which shape: from capture to the tracking job."""
FLUSHES: Final = "flushes"
"""How far each shape is durable: from the writers to the tracking job."""
SHAPE_CHANGES: Final = "shape_changes"
"""What each shape is sent: from capture to the writers."""
SHAPES: Final = "shapes"
"""The registry of shapes and tables: from capture to all readers."""
SNAPSHOTS: Final = "snapshots"
"""The rows that shapes had before their changes: from the snapshots' job to the writers."""
SNAPSHOTS_TAKEN: Final = "snapshots_taken"
"""The last event of each shape's last snapshot in ``snapshots``: from the snapshots' job to itself."""
