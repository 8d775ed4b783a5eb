"""``take_snapshot``: one attempt for some shapes of one table, from its lock to its commit in the shape log.

The transaction that exports the snapshot stays open, and is checked, until the rows are appended. A failure before the
commit leaves nothing behind. A shape that cannot be read is skipped.
"""

import time
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from threading import Event

from pyspark.sql import SparkSession

from flushtracker.config.snapshot_config import SnapshotConfig
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.postgres.connection import Connection, require_open
from flushtracker.postgres.published_wait import wait_until_published
from flushtracker.postgres.snapshot_export import exported_table
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.snapshot.attempt_limits import SnapshotStoppedError
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.snapshot.progress import Progress
from flushtracker.shape_log.snapshot.reading import Reading
from flushtracker.shape_log.snapshot.snapshot_store import Outcome
from flushtracker.shape_log.snapshot.table_reads import read_plan, readable_shapes
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import open_shape_log, row_files
from flushtracker.shape_log.table.snapshots import last_attempt


def take_snapshot(
    spark: SparkSession, config: SnapshotConfig, group: DueTable, stop: Event, live: LiveSnapshotStatus
) -> Outcome:
    """Append the snapshots of the group's shapes, in one commit.

    Raises:
        SnapshotStoppedError: ``stop`` was set before the end.
        TooLargeError: it takes, or would take, too long.
        FlushtrackerError: no shape of the group can have a snapshot now.
    """
    started = time.monotonic()
    postgres, sink = config.postgres, config.sink
    table = open_shape_log(sink.log, sink.storage_options)
    log, files = LogFiles(table, sink.storage_options), row_files(table, sink.storage_options)
    outcome = Outcome()
    with exported_table(
        postgres.connection,
        group.source_now,
        group.table.table,
        group.table.oid,
        group.inner,
        publication=postgres.publication,
        lock_timeout_s=postgres.lock_timeout_ms / 1000,
    ) as (connection, exported):
        # Read while no other export of the table is possible, so that this is the table's last attempt.
        attempt = max(exported.taken_us, last_attempt(sink.log, sink.storage_options) + 1)
        shapes = readable_shapes(group, exported, outcome.failed)
        plan = read_plan(postgres, connection, group.source, exported, attempt, shapes)
        reading = Reading(spark, files, plan, connection, Progress(connection, ".".join(group.table.table), live))
        written = reading.run(postgres, stop)
        outcome.failed |= reading.failed
        outcome.taken = [shape.shape_id for shape in reading.plan.shapes]
        if outcome.taken:
            # Files of the first steps may be hours old.
            files.require(written)
            written = log.without(written, reading.incomplete)
            outcome.rows = sum(file.rows for file in written)
            snapshot = ShapeSnapshot(attempt, exported.visible, exported.lsn, exported.next_xid)
            taken = set(outcome.taken)
            ends = {
                (group.source, entry.definition.id): _of_incarnation(snapshot, entry)
                for entry in group.shapes
                if entry.definition.id in taken
            }
            wait_until_published(connection, group.slot, exported.lsn, partial(_check, stop, connection))
            log.append_snapshot([*written, log.write_ends(ends, datetime.now(timezone.utc))], ends)
    outcome.seconds = time.monotonic() - started
    return outcome


def _check(stop: Event, connection: Connection) -> None:
    if stop.is_set():
        raise SnapshotStoppedError
    require_open(connection)


def _of_incarnation(snapshot: ShapeSnapshot, entry: ShapeEntry) -> ShapeSnapshot:
    incarnation = entry.definition.incarnation
    if incarnation == 1:
        return snapshot
    return replace(snapshot, incarnation=incarnation, starts_after=entry.starts_after.tx_offset)
