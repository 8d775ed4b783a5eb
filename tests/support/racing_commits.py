"""Processes that commit to the same tables as fast as they can, each in a role: ``ROLE FOLDER COUNT``.

Each line that a process prints is a table and a row that it has appended. Each runs until it has appended COUNT times;
``upkeep`` until the others have, which is when the file ``done`` is in the folder.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from flushtracker.delta import compaction
from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.dead_letter_table import DeadLetterTable
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.process.process_end import end_process
from flushtracker.shape_log.merge_plan import MergeSettings
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.spark.row_writer import write_rows
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.table.upkeep import ShapeLogUpkeep
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.spark.session import start_session
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.shape_log_rows import SOURCE, arrow, commit, item

_CREATORS: Final = 3
_CREATE: Final[dict[str, Callable[[str], object]]] = {
    "log": create_shape_log,
    "shapes": lambda uri: RegistryTable(uri, create=True),
    "acks": AckTable,
}
NOW: Final = datetime.now(timezone.utc)


def writer(folder: Path, count: int) -> Iterator[str]:
    """The writers' job, as far as it commits; and a tracking job's acks and dead letters."""
    table, registry = create_shape_log(str(folder / "log")), RegistryTable(str(folder / "shapes"), create=True)
    files, claim, acks = LogFiles(table, {}), LogClaim(table), AckTable(str(folder / "acks"))
    claim.take()
    acks.fence_others()
    for number in range(count):
        rows = [item((1000 + 10 * number, 0), "insert", "k", {"id": "k"}), commit(1000 + 10 * number)]
        claim.append([WrittenFile(files.write(arrow(rows), None, is_change=True))], claim.version_of(number))
        yield f"log {1000 + 10 * number}"
        registry.append([shape(f"w{number}")], NOW + timedelta(seconds=number))
        yield f"shapes w{number}"
        acks.append(AckRow(SOURCE, number, 1 + number, 1 + number, 0, None, None, NOW))
        yield f"acks {1 + number}"
        yield dead_letter(folder, "writer", number)


def upkeep(folder: Path, _: int) -> Iterator[str]:
    """Merges, and what a second writers' and tracking job could append while they are being fenced."""
    registry = RegistryTable(str(folder / "shapes"), create=True)
    merges, number = ShapeLogUpkeep(str(folder / "log"), settings=MergeSettings(merge_files=2)), 0
    while not (folder / "done").exists():
        merges.run(NOW)
        registry.append([shape(f"u{number}")], NOW + timedelta(seconds=number))
        yield f"shapes u{number}"
        yield dead_letter(folder, "upkeep", number)
        number += 1


def snapshot(folder: Path, count: int) -> Iterator[str]:
    """What the snapshots' job appends."""
    spark, log = start_session("snapshot", 2), str(folder / "log")
    table = create_shape_log(log)
    files = LogFiles(table, {})
    for number in range(count):
        written = write_rows(snapshot_frame(spark, number), row_files(table, {}), as_log_rows)
        files.append_snapshot(written, {("7/1/s", "snapshot"): ShapeSnapshot(1, MvccSnapshot(1, 1), 0, 1)})
        yield f"log {-1 - number}"
    spark.stop()


def spark_commits(folder: Path, count: int) -> Iterator[str]:
    """The same, but committed by Spark's own Delta writer."""
    spark, log = start_session("snapshot", 2), str(folder / "log")
    create_shape_log(log)
    for number in range(count):
        snapshot_frame(spark, number).write.format("delta").mode("append").save(log)
        yield f"log {-1 - number}"
    spark.stop()


def creators(folder: Path, count: int) -> Iterator[str]:
    """Processes that find no tables at the same moment, create them, and append to one."""
    barrier = multiprocessing.Barrier(_CREATORS, timeout=60)
    processes = [multiprocessing.Process(target=_create, args=(folder, count, barrier, k)) for k in range(_CREATORS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    yield f"tables {count}"


def _create(folder: Path, count: int, barrier: Barrier, process: int) -> None:
    for number in range(count):
        tables = folder / str(number)
        for name, create in _CREATE.items():
            barrier.wait()
            create(str(tables / name))
        barrier.wait()
        dead_letter(tables, f"creator{process}", number)


def dead_letter(folder: Path, query: str, number: int) -> str:
    """Append one dead letter."""
    row = {"batch_id": number, "place": query, "reason": "r", "value": f"{query}{number}", "written_at": NOW}
    DeadLetterTable(str(folder / "letters")).append([row], query, number)
    return f"letters {query}{number}"


def shape(shape_id: str) -> str:
    """A registry entry."""
    return ShapeEntry(SOURCE, ShapeDefinition(shape_id, ("public", "users")), 7, LogOffset(9, 0)).to_json()


def snapshot_frame(spark: SparkSession, number: int) -> DataFrame:
    """The one row of a snapshot, to be written by executors."""
    columns = [f"'{SOURCE}' AS source", "'users' AS shape_id", f"{-1 - number}L AS tx_offset", "0L AS op_offset"]
    texts = [f"CAST(NULL AS STRING) AS {name}" for name in ("operation", "key", "value", "old_value")]
    rest = ["0L AS xid", "CAST(NULL AS TIMESTAMP) AS commit_timestamp", "0L AS chunk"]
    rest.append("CAST(NULL AS TIMESTAMP) AS written_at")
    return spark.range(1).selectExpr(*columns, *texts, *rest)


def as_log_rows(batch: pa.RecordBatch) -> pa.Table:
    """What :func:`snapshot_frame` has, in the log's columns."""
    return pa.table(batch).cast(SCHEMA)


ROLES: Final = {role.__name__: role for role in (writer, upkeep, snapshot, spark_commits, creators)}

if __name__ == "__main__":
    compaction.COMPACT_EVERY = 5  # type: ignore[misc]
    for line in ROLES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3])):
        print(line, flush=True)  # noqa: T201
    end_process(0)
