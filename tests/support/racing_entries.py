"""A process that appends entries to a registry table in an object store: ``PORT NAME COUNT``.

It waits for a line of its input before it begins, so that several begin at the same moment.
"""

import sys
from datetime import datetime, timezone
from typing import Final

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.object_store import store_options

URI: Final = "s3://bucket/shapes"


def main() -> None:
    """Append entries, named by the argument and a number, each in a commit of its own."""
    port, name, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    registry = RegistryTable(URI, store_options(port), create=True)
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    for number in range(count):
        definition = ShapeDefinition(f"{name}{number}", ("public", "users"))
        entry = ShapeEntry("7/1/s", definition, 7, LogOffset(9, 0)).to_json()
        registry.append([entry], datetime.now(timezone.utc))


if __name__ == "__main__":
    main()
