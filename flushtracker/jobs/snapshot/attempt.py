"""``take_snapshot``: one attempt for some shapes of one table, from its lock to its commit in the shape log.

The transaction that exports the snapshot stays open, and is checked, until the rows are appended. A failure before the
commit leaves nothing behind. A shape that cannot be read is left out, and the others are read again in the same
snapshot.
"""

import logging
import re
import time
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.snapshots import snapshot_attempts
from flushtracker.delta.log.table import open_shape_log
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.jobs.snapshot.append_job import AppendJob, ShapeReadError
from flushtracker.jobs.snapshot.due_shapes import TableShapes
from flushtracker.jobs.snapshot.read_plan import ItemColumns, ReadPlan, ShapeReads, TableReads, plan_ranges
from flushtracker.jobs.snapshot.read_ranges import APPLICATION_NAME
from flushtracker.postgres.connection import Connection, require_open, rows
from flushtracker.postgres.snapshot_export import ExportedTable, exported_table
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import TableBinding, reason_to_end
from flushtracker.shapes.where.server_text import server_text
from flushtracker.spark.hadoop_files import spark_path
from flushtracker.spark.row_files import RowFiles
from flushtracker.wal.changes import TableName

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_MOST_S: Final = 5 * 3600.0
"""An hour less than the shape log's retention: a vacuum deletes older files that no commit has named yet."""

_PROGRESS_EVERY_S: Final = 5.0
# A transaction sees the activity of one moment, unless it discards that.
_DISCARD_ACTIVITY: Final = "SELECT pg_stat_clear_snapshot()"
_REPORT: Final = re.compile(r"([0-9]{1,18}) ([0-9]{1,18})")
_REPORTS: Final = "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE %s"


class SnapshotStoppedError(FlushtrackerError):
    """The job was told to stop during an attempt, of which nothing was appended."""

    exit_code = 0


@dataclass(slots=True)
class Outcome:
    """The shapes of an attempt that now have a snapshot, and those that ``failed``, each with the reason."""

    taken: list[str] = field(default_factory=list)
    failed: dict[str, FlushtrackerError] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


def take_snapshot(spark: SparkSession, config: SnapshotConfig, group: TableShapes, stop: Event) -> Outcome:
    """Append the snapshots of the group's shapes, in one commit.

    Raises:
        SnapshotStoppedError: ``stop`` was set before the end.
        FlushtrackerError: no shape of the group can have a snapshot now.
    """
    started = time.monotonic()
    postgres, sink, outcome = config.postgres, config.sink, Outcome()
    log = LogFiles(open_shape_log(sink.log, sink.storage_options), sink.storage_options)
    files = RowFiles("shape log", spark_path(sink.log), log.written)
    with exported_table(
        *(postgres.connection, group.source, group.table.table, group.table.oid),
        publication=postgres.publication,
        lock_timeout_s=postgres.lock_timeout_ms / 1000,
    ) as (connection, exported):
        # Read while no other export of the table is possible, so that this is the table's last attempt.
        attempts = snapshot_attempts(sink.log, sink.storage_options).values()
        attempt = max([exported.taken_us, *(number + 1 for number in attempts)])
        shapes = _readable(group, exported, outcome)
        while shapes and not outcome.taken:
            plan = _plan(config, connection, exported, attempt, tuple(shapes.values()))
            snapshot = ShapeSnapshot(attempt, exported.visible, exported.lsn, exported.next_xid)
            job = AppendJob(spark, log, files, plan, snapshot, postgres.connections)
            try:
                _run(job, connection, Progress(connection, group.table.table, plan), stop)
                outcome.taken, outcome.rows = list(shapes), job.rows
            except ShapeReadError as failure:
                shape_id = plan.shapes[failure.shape].shape_id
                outcome.failed[shape_id] = failure.reason
                del shapes[shape_id]
    outcome.seconds = time.monotonic() - started
    return outcome


class Progress:
    """Logs how far the connections of an attempt are, every few seconds.

    They report it as their application names, which are read over the connection that exports the snapshot.
    """

    def __init__(self, connection: Connection, table: TableName, plan: ReadPlan) -> None:
        self._connection = connection
        self._table = ".".join(table)
        self._plan = plan
        self._started_s = self._logged_s = time.monotonic()
        # For a connection that has ended, the last report is kept.
        self._reports: dict[int, tuple[int, int]] = {}

    def poll(self) -> None:
        """Log the progress if it is due; raises ``PostgresUnavailableError`` if the connection is lost."""
        now = time.monotonic()
        if now - self._logged_s < _PROGRESS_EVERY_S:
            return
        self._logged_s = now
        rows(self._connection, _DISCARD_ACTIVITY)
        prefix = f"{APPLICATION_NAME} {self._plan.attempt} "
        for pid, name in rows(self._connection, _REPORTS, (prefix + "%",)):
            # Any client may choose such a name.
            if found := _REPORT.fullmatch(name.removeprefix(prefix)):
                self._reports[pid] = int(found[1]), int(found[2])
        done, read = (sum(column) for column in zip((0, 0), *self._reports.values(), strict=True))
        seconds, of = now - self._started_s, self._plan.tasks
        logger.info(
            "snapshot running table=%s shapes=%d ranges=%d/%d rows=%d rows_per_s=%d seconds_left=%s",
            *(self._table, len(self._plan.shapes), done, of, read, read / seconds),
            round(seconds / done * (of - done)) if done else "unknown",
        )


def _run(job: AppendJob, connection: Connection, progress: Progress, stop: Event) -> None:
    """Run the job to its end, and check meanwhile that the snapshot's transaction is open."""
    deadline = time.monotonic() + _MOST_S
    job.start()
    try:
        while not job.wait(_POLL_S):
            if stop.is_set():
                raise SnapshotStoppedError("stopped before the snapshot was complete; nothing of it was appended")
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the snapshot takes longer than {_MOST_S / 3600:g} hours, after which upkeep of the shape log "
                    "could delete its first files before they are part of it; name fewer shapes, or raise "
                    "postgres.connections"
                )
            require_open(connection)
            progress.poll()
    finally:
        job.cancel()
    job.require_done()


def _readable(group: TableShapes, exported: ExportedTable, outcome: Outcome) -> dict[str, ShapeReads]:
    """How to read each shape; a shape that its table no longer fits is added to those that failed."""
    found: dict[str, ShapeReads] = {}
    for entry in group.shapes:
        shape_id = entry.definition.id
        try:
            found[shape_id] = _reads(entry, group.table, exported)
        except ShapeError as error:
            outcome.failed[shape_id] = error
    return found


def _reads(entry: ShapeEntry, bound: TableBinding, exported: ExportedTable) -> ShapeReads:
    shape, key = Shape(entry.definition), entry.definition.primary_key
    can_lose = entry.definition.keys_have_partitions
    reason = reason_to_end(
        shape.used_columns, bound, exported.binding, key, shape.filtered_columns, can_lose_partitions=can_lose
    )
    if reason is not None:
        raise ShapeError(f"shape {entry.definition.id!r}: {reason}; capture ends it, so define it under a new id")
    tables = []
    for leaf in exported.leaves:
        items, where = shape.bind(leaf.relation), entry.definition.where
        columns = ItemColumns(items.columns, items.key_columns, items.prefix_in(leaf.relation))
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
        plan_ranges([leaf.pages for leaf in exported.leaves], connection.server_version),
        config.postgres.statement_timeout_ms,
    )
