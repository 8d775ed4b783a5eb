"""``take_snapshot``: one attempt for some shapes of one table, from its lock to its commit in the shape log.

The transaction that exports the snapshot stays open, and is looked after, until the rows are appended. Whatever fails
before the commit leaves nothing behind. A shape that cannot be read is left out, and the others are read again in the
same snapshot.
"""

import time
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.delta.log.snapshots import snapshot_attempts
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.jobs.snapshot.append_job import AppendJob, ShapeReadError
from flushtracker.jobs.snapshot.due_shapes import TableShapes
from flushtracker.jobs.snapshot.item_texts import ItemColumns
from flushtracker.jobs.snapshot.progress import Progress
from flushtracker.jobs.snapshot.read_plan import ReadPlan, ShapeReads, TableReads, read_ranges
from flushtracker.postgres.connection import Connection, require_open
from flushtracker.postgres.snapshot_export import ExportedTable, exported_table
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from flushtracker.shapes.where.server_text import server_text
from flushtracker.spark.hadoop_files import spark_path

_POLL_S: Final = 0.5
_MOST_S: Final = 5 * 3600.0
"""An hour less than the shape log's retention: a vacuum deletes older files that no commit has named yet."""


class StoppedError(FlushtrackerError):
    """The job was asked to stop during an attempt, of which nothing was appended."""

    exit_code = 0


@dataclass(slots=True)
class Outcome:
    """The shapes of an attempt that have a snapshot now, and those that ``failed``, each with the reason."""

    taken: list[str] = field(default_factory=list)
    failed: dict[str, FlushtrackerError] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


def take_snapshot(spark: SparkSession, config: SnapshotConfig, group: TableShapes, stop: Event) -> Outcome:
    """Append the snapshots of the group's shapes, in one commit.

    Raises:
        StoppedError: ``stop`` was set before the end.
        FlushtrackerError: no shape of the group can have a snapshot now.
    """
    started = time.monotonic()
    postgres, outcome = config.postgres, Outcome()
    with exported_table(
        *(postgres.connection, group.source, group.table.table, group.table.oid),
        publication=postgres.publication,
        lock_timeout_s=postgres.lock_timeout_ms / 1000,
    ) as (connection, exported):
        # Read while no other export of the table is possible: of its attempts, this is the last.
        attempts = snapshot_attempts(config.sink.log, config.sink.storage_options).values()
        attempt = max([exported.taken_us, *(number + 1 for number in attempts)])
        shapes = _readable(group, exported, outcome)
        while shapes and not outcome.taken:
            plan = _plan(config, connection, exported, attempt, tuple(shapes.values()))
            snapshot = ShapeSnapshot(attempt, exported.visible, exported.lsn, exported.next_xid)
            job = AppendJob(spark, spark_path(config.sink.log), plan, snapshot, postgres.connections)
            try:
                _run(job, connection, Progress(connection, group.table.table, plan), stop)
                outcome.taken, outcome.rows = list(shapes), job.rows
            except ShapeReadError as failure:
                shape_id = plan.shapes[failure.shape].shape_id
                outcome.failed[shape_id] = failure.reason
                del shapes[shape_id]
    outcome.seconds = time.monotonic() - started
    return outcome


def _run(job: AppendJob, connection: Connection, progress: Progress, stop: Event) -> None:
    """Run the job to its end, as long as the snapshot's transaction is open."""
    deadline = time.monotonic() + _MOST_S
    job.start()
    try:
        while not job.wait(_POLL_S):
            if stop.is_set():
                raise StoppedError("stopped before the snapshot was complete; nothing of it was appended")
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the snapshot takes longer than {_MOST_S / 3600:g} hours, after which upkeep of the shape log "
                    "could delete its first files before they are part of it; name fewer shapes at once, or raise "
                    "postgres.connections"
                )
            require_open(connection)
            progress.poll()
    finally:
        job.cancel()
    job.require_done()


def _readable(group: TableShapes, exported: ExportedTable, outcome: Outcome) -> dict[str, ShapeReads]:
    """How to read each shape; those whose table is not what it was when they were bound to it have failed."""
    found: dict[str, ShapeReads] = {}
    for entry in group.shapes:
        shape_id = entry.definition.id
        try:
            found[shape_id] = _reads(entry, group.table, exported)
        except ShapeError as error:
            outcome.failed[shape_id] = error
    return found


def _reads(entry: ShapeEntry, bound: TableBinding, exported: ExportedTable) -> ShapeReads:
    shape = Shape(entry.definition)
    if reason := reason_to_end(shape.used_columns, bound, exported.binding):
        raise ShapeError(f"shape {entry.definition.id!r}: {reason}; capture ends it, so define it under a new id")
    tables = []
    for leaf in exported.leaves:
        items, where = shape.bind(leaf.relation), entry.definition.where
        columns = ItemColumns(items.columns, items.key_columns, items.key_prefix)
        tables.append(TableReads(columns, None if where is None else server_text(where, leaf.relation)))
    return ShapeReads(entry.source, entry.definition.id, tuple(tables))


def _plan(
    config: SnapshotConfig,
    connection: Connection,
    exported: ExportedTable,
    attempt: int,
    shapes: tuple[ShapeReads, ...],
) -> ReadPlan:
    return ReadPlan(
        dict(config.postgres.connection),
        exported.snapshot_id,
        attempt,
        tuple(leaf.relation.table for leaf in exported.leaves),
        shapes,
        read_ranges([leaf.pages for leaf in exported.leaves], connection.server_version),
        config.postgres.statement_timeout_ms,
    )
