"""The keys of tables in tests that are not about keys."""

from typing import Final

from flushtracker.shapes.key_binding import KeyBinding

ID_KEY: Final = (KeyBinding(1, ("id",)),)
