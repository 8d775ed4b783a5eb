"""A writer, its upkeep, a driver and a registry on tables in one folder, in one process that confirms what is durable.

``python -m tests.support.durable_writes FOLDER``: each line that it prints is a table and what has been appended to it.
Tables are compacted, checkpointed and vacuumed as often as can be, and nothing is retained. With ``UNSYNCED`` in the
environment, nothing is synced.
"""

import os
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Final

from flushtracker.delta import compaction, owned_table
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import table_rows
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.process.process_end import end_process
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.table import log_table, upkeep
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.log_offset import LogOffset
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_NOTHING_RETAINED: Final = {
    "delta.checkpointInterval": "4",
    "delta.logRetentionDuration": "interval 0 seconds",
    "delta.deletedFileRetentionDuration": "interval 0 seconds",
}


def write(folder: Path) -> Iterator[str]:
    """Append to each table in turn, forever, and yield what is durable."""
    log = str(folder / "log")
    table, registry, acks = create_shape_log(log), RegistryTable(str(folder / "shapes"), create=True), _acks(folder)
    files, claim, now = LogFiles(table, {}), LogClaim(table), datetime.now(timezone.utc)
    claim.take()
    merges = ShapeLogUpkeep(log, settings=MergeSettings(merge_files=2))
    for number in count():
        rows = [item((1000 + 10 * number, 0), "insert", str(number), {"id": str(number)}), commit(1000 + 10 * number)]
        written = WrittenFile(files.write(arrow(rows), None, is_change=True))
        claim.append([written], claim.version_of(number))
        yield f"log {1000 + 10 * number}"
        acks.append(AckRow(SOURCE, number, 1 + number, 1 + number, 0, None, None, now))
        yield f"acks {1 + number}"
        registry.append([_entry(f"s{number}").to_json()], now)
        yield f"shapes s{number}"
        merges.run(now)


def there(folder: Path) -> dict[str, set[str]]:
    """What each table has when it is opened for writing, in the words of :func:`write`."""
    found = {"log": set[str](), "acks": set[str](), "shapes": set[str]()}
    if (folder / "log").exists():
        rows = table_rows(create_shape_log(str(folder / "log")), ["tx_offset"], "operation = 'commit'")
        found["log"] = {str(tx) for tx in rows["tx_offset"].to_pylist()}
    if (folder / "acks").exists():
        acks = AckTable(str(folder / "acks"))
        found["acks"] = {str(ack) for ack in range(1, 1 + (acks.last_ack(SOURCE) or 0))}
        lsns = sorted(table_rows(acks._table, ["ack_lsn"])["ack_lsn"].to_pylist())
        assert lsns == list(range(1, 1 + len(lsns)))
    if (folder / "shapes").exists():
        entries = RegistryTable(str(folder / "shapes"), create=True).entries()
        found["shapes"] = {shape_id for _, _, shape_id in entries.entries}
    return found


def _acks(folder: Path) -> AckTable:
    acks = AckTable(str(folder / "acks"))
    acks.fence_others()
    return acks


def _entry(shape_id: str) -> ShapeEntry:
    return ShapeEntry(SOURCE, ShapeDefinition(shape_id, ("public", "users")), 7, LogOffset(9, 0))


def _retain_nothing() -> None:
    for module in (log_table, owned_table):
        module.CONFIGURATION.update(_NOTHING_RETAINED)
    compaction.COMPACT_EVERY = 5  # type: ignore[misc]
    upkeep.VACUUM_EVERY = 3  # type: ignore[misc]


if __name__ == "__main__":
    _retain_nothing()
    if "UNSYNCED" in os.environ:
        os.fsync = lambda _: None  # type: ignore[assignment]
    for line in write(Path(sys.argv[1])):
        print(line, flush=True)  # noqa: T201
    end_process(0)
