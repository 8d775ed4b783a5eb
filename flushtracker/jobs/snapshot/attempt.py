"""``take_snapshot``: one attempt for some shapes of one table, from its lock to its commit in the shape log.

The transaction that exports the snapshot stays open, and is checked, until the rows are appended. A failure before the
commit leaves nothing behind. A shape that cannot be read is left out.
"""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from threading import Event

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.snapshots import snapshot_attempts
from flushtracker.delta.log.table import open_shape_log
from flushtracker.errors import FlushtrackerError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.jobs.snapshot.due_shapes import TableShapes
from flushtracker.jobs.snapshot.live_status import LiveSnapshotStatus
from flushtracker.jobs.snapshot.progress import Progress
from flushtracker.jobs.snapshot.read_plan import ItemColumns, ReadPlan, ShapeReads, TableReads, plan_ranges
from flushtracker.jobs.snapshot.reading import Reading
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.snapshot_export import ExportedTable, exported_table
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.shape import BoundShape, Shape
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from flushtracker.shapes.where.server_text import server_text
from flushtracker.spark.hadoop_files import spark_path
from flushtracker.spark.row_files import RowFiles


@dataclass(slots=True)
class Outcome:
    """The shapes of an attempt that now have a snapshot, and those that ``failed``, each with the reason."""

    taken: list[str] = field(default_factory=list)
    failed: dict[str, FlushtrackerError] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


def take_snapshot(
    spark: SparkSession, config: SnapshotConfig, group: TableShapes, stop: Event, live: LiveSnapshotStatus
) -> Outcome:
    """Append the snapshots of the group's shapes, in one commit.

    Raises:
        SnapshotStoppedError: ``stop`` was set before the end.
        TooLargeError: it takes, or would take, too long.
        FlushtrackerError: no shape of the group can have a snapshot now.
    """
    started = time.monotonic()
    postgres, sink = config.postgres, config.sink
    log = LogFiles(open_shape_log(sink.log, sink.storage_options), sink.storage_options)
    files = RowFiles("shape log", spark_path(sink.log), log.written)
    outcome = Outcome()
    with exported_table(
        *(postgres.connection, group.source, group.table.table, group.table.oid),
        publication=postgres.publication,
        lock_timeout_s=postgres.lock_timeout_ms / 1000,
    ) as (connection, exported):
        # Read while no other export of the table is possible, so that this is the table's last attempt.
        attempts = snapshot_attempts(sink.log, sink.storage_options).values()
        attempt = max([exported.taken_us, *(number + 1 for number in attempts)])
        shapes = _readable(group, exported, outcome)
        plan = _plan(config, connection, group.source, exported, attempt, shapes)
        reading = Reading(spark, files, plan, connection, Progress(connection, ".".join(group.table.table), live))
        written = reading.run(postgres, stop)
        outcome.failed |= reading.failed
        outcome.taken = [shape.shape_id for shape in reading.plan.shapes]
        if outcome.taken:
            written = log.without(written, reading.incomplete)
            outcome.rows = sum(file.rows for file in written)
            snapshot = ShapeSnapshot(attempt, exported.visible, exported.lsn, exported.next_xid)
            keys = [(group.source, shape_id) for shape_id in outcome.taken]
            ends = log.write_ends(keys, snapshot, datetime.now(timezone.utc))
            log.append_snapshot([*written, ends], keys, snapshot)
    outcome.seconds = time.monotonic() - started
    return outcome


def _readable(group: TableShapes, exported: ExportedTable, outcome: Outcome) -> tuple[ShapeReads, ...]:
    """How to read each shape; a shape that its table no longer fits is added to those that failed."""
    found = list[ShapeReads]()
    for entry in group.shapes:
        shape_id = entry.definition.id
        try:
            found.append(_reads(entry, group.table, exported))
        except ShapeError as error:
            outcome.failed[shape_id] = error
    return tuple(found)


def _reads(entry: ShapeEntry, bound: TableBinding, exported: ExportedTable) -> ShapeReads:
    shape, key, where = Shape(entry.definition), entry.definition.primary_key, entry.definition.where
    can_lose = entry.definition.keys_have_partitions
    reason = reason_to_end(
        shape.used_columns, bound, exported.binding, key, shape.filtered_columns, can_lose_partitions=can_lose
    )
    if reason is not None:
        raise ShapeError(f"shape {entry.definition.id!r}: {reason}; capture ends it, so define it under a new id")
    layouts: dict[Hashable, tuple[BoundShape, str | None]] = {}
    tables = list[TableReads]()
    for relation in (leaf.relation for leaf in exported.leaves):
        layout = relation.columns, relation.replica_identity
        if layout not in layouts:
            layouts[layout] = shape.bind(relation), None if where is None else server_text(where, relation)
        items, text = layouts[layout]
        tables.append(TableReads(ItemColumns(items.columns, items.key_columns, items.prefix_in(relation)), text))
    return ShapeReads(entry.definition.id, tuple(tables))


def _plan(
    config: SnapshotConfig,
    connection: Connection,
    source: str,
    exported: ExportedTable,
    attempt: int,
    shapes: tuple[ShapeReads, ...],
) -> ReadPlan:
    return ReadPlan(
        dict(config.postgres.connection),
        exported.snapshot_id,
        attempt,
        source,
        tuple(leaf.relation.table for leaf in exported.leaves),
        shapes,
        plan_ranges([leaf.pages for leaf in exported.leaves], connection.server_version),
        config.postgres.statement_timeout_ms,
    )
