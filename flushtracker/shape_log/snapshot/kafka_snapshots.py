"""``KafkaSnapshots``: snapshots as Kafka events, for writers with other storages, without Spark.

The attempt is the export's 64-bit xid, with the server's timeline in higher bits. It rises with each export, even if
the clock is set back: only its events are known of a killed attempt.
"""

import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from threading import Event

import pyarrow as pa

from flushtracker.config.streams import SHAPES, SNAPSHOTS_TAKEN
from flushtracker.errors import DecodeError, NewerEventError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import parse_registry_entry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.postgres.connection import Connection, require_open
from flushtracker.postgres.published_wait import wait_until_published
from flushtracker.postgres.snapshot_export import attempt_number, exported_table, primary_server
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.shape_log.snapshot.attempt_limits import SnapshotStoppedError, require_fitting, too_large
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus
from flushtracker.shape_log.snapshot.progress import Progress
from flushtracker.shape_log.snapshot.publish_config import PublishConfig
from flushtracker.shape_log.snapshot.published_attempt import PublishedAttempt
from flushtracker.shape_log.snapshot.read_plan import ReadPlan, next_step
from flushtracker.shape_log.snapshot.read_ranges import (
    RangeError,
    ShapeReadError,
    failure_of,
    range_failures,
    read_function,
)
from flushtracker.shape_log.snapshot.snapshot_store import Outcome
from flushtracker.shape_log.snapshot.table_reads import read_plan, readable_shapes
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.names import LOG_WRITER

logger = logging.getLogger(__name__)


class KafkaSnapshots:
    """A :class:`flushtracker.shape_log.snapshot.snapshot_store.SnapshotStore`; close it when done."""

    def __init__(self, config: PublishConfig) -> None:
        self._config = config
        self._topics = config.kafka.topics.by_role()
        self._reader = TopicReader(config.kafka)
        self._ends: tuple[Mapping[int, int], ...] = ()
        """The Kafka offsets up to which the topics were read."""

    def takes(self, writer: str) -> bool:
        return writer != LOG_WRITER

    def has_changed(self) -> bool:
        return self._ends != self._read_ends()

    def registry(self) -> Registry:
        self._ends = self._read_ends()
        return Registry.of(map(parse_registry_entry, self._reader.values(self._topics[SHAPES])))

    def taken(self) -> dict[ShapeKey, int]:
        taken = dict[ShapeKey, int]()
        for value in self._reader.values(self._topics[SNAPSHOTS_TAKEN]):
            try:
                event = SnapshotEvent.from_json(value)
            except NewerEventError:  # noqa: PERF203  any of the events may be malformed
                raise
            except DecodeError as error:
                # Its shape gets another snapshot, and the others are not kept waiting.
                logger.warning("event of a snapshot malformed topic=%s reason=%s", self._topics[SNAPSHOTS_TAKEN], error)
            else:
                taken[event.source, event.shape_id] = event.incarnation
        return taken

    def take(self, group: DueTable, stop: Event, live: LiveSnapshotStatus) -> Outcome:
        """Publish the group's snapshots.

        If a shape fails while rows are read, the others are incomplete and are read again without it.
        """
        started, outcome = time.monotonic(), Outcome()
        rest = group
        while rest.shapes and not outcome.taken:
            try:
                self._try_to_take(rest, outcome, stop, live)
            except ShapeReadError as error:
                outcome.failed |= error.reasons
            rest = rest.without(lambda shape_id: shape_id in outcome.failed)
        outcome.seconds = time.monotonic() - started
        return outcome

    def close(self) -> None:
        self._reader.close()

    def _try_to_take(self, group: DueTable, outcome: Outcome, stop: Event, live: LiveSnapshotStatus) -> None:
        postgres, kafka = self._config.postgres, self._config.kafka
        with (
            exported_table(
                postgres.connection,
                group.source_now,
                group.table.table,
                group.table.oid,
                group.inner,
                publication=postgres.publication,
                lock_timeout_s=postgres.lock_timeout_ms / 1000,
            ) as (connection, exported),
            closing(KafkaPublisher(kafka, stop)) as publisher,
        ):
            attempt = attempt_number(primary_server(connection), exported.next_xid, group.earlier_timelines)
            shapes = readable_shapes(group, exported, outcome.failed)
            plan = read_plan(postgres, connection, group.source, exported, attempt, shapes)
            published = PublishedAttempt(publisher, self._topics, kafka.max_event_bytes, group.source, attempt)
            progress = Progress(connection, ".".join(group.table.table), live)
            if shapes:
                reading = _Reading(plan, published, connection, progress, stop, postgres.max_attempt_ms / 1000)
                incarnations = {entry.definition.id: entry.definition.incarnation for entry in group.shapes}
                contained = ContainedTransactions.of(exported.visible, exported.lsn, exported.next_xid)
                reading.run(
                    {shape.shape_id: incarnations[shape.shape_id] for shape in shapes},
                    contained,
                    partial(wait_until_published, connection, group.slot, exported.lsn),
                )
            outcome.taken, outcome.rows = [shape.shape_id for shape in shapes], published.rows

    def _read_ends(self) -> tuple[Mapping[int, int], ...]:
        return tuple(self._reader.ends(self._topics[role]) for role in (SHAPES, SNAPSHOTS_TAKEN))


class _Reading:
    """Reads the ranges of a plan in order, over one connection, and publishes their rows.

    It reconnects after each step, so that a session waiting for the table gets its lock, and ends the attempt.
    """

    def __init__(
        self,
        plan: ReadPlan,
        published: PublishedAttempt,
        connection: Connection,
        progress: Progress,
        stop: Event,
        most_s: float,
    ) -> None:
        self._plan, self._published, self._connection = plan, published, connection
        self._progress, self._stop, self._most_s = progress, stop, most_s
        self._done = 0

    def run(
        self,
        incarnations: Mapping[str, int],
        contained: ContainedTransactions,
        wait_until_published: Callable[[Callable[[], None]], None],
    ) -> None:
        """Publish everything, and finally that the attempt is complete; ``incarnations`` are those of its shapes.

        ``wait_until_published`` waits until capture has published past the snapshot; it is passed a check to call
        meanwhile.
        """
        ranges = len(self._plan.ranges)
        self._published.begin(incarnations)
        while self._done < ranges:
            self._progress.step_done(self._plan, self._done, self._published.rows)
            numbers = next_step(self._done, ranges, self._progress.seconds, connections=1)
            with closing(_batches(self._plan, numbers)) as batches:
                for batch in batches:
                    self._published.add(batch.to_pylist())
                    self._check()
            self._done = numbers.stop
            require_fitting(self._plan, self._done, self._progress.seconds, self._most_s)
        wait_until_published(self._check)
        self._published.end(incarnations, contained, self._check)

    def _check(self) -> None:
        """Raise what ends the attempt early. While the transaction is open, no other attempt can have begun."""
        if self._stop.is_set():
            raise SnapshotStoppedError
        if self._progress.seconds > self._most_s:
            raise too_large(self._plan, self._done, self._progress.seconds, self._most_s)
        require_open(self._connection)
        self._progress.poll(self._plan)


def _batches(plan: ReadPlan, numbers: range) -> Generator[pa.RecordBatch, None, None]:
    """The rows of these ranges, over a new connection; raises ``ShapeReadError``, or an error of all shapes."""
    ranges = pa.RecordBatch.from_pydict({"id": list(numbers)})
    try:
        yield from read_function(plan)(iter([ranges]))
    except RangeError as error:
        raise failure_of(range_failures(str(error))) from error
