"""``python -m flushtracker``: the command, from wherever the package is."""

from flushtracker.cli import run

run()
