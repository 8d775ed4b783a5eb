"""The driver's side of a micro-batch: the groups' rows in, one ack for each source out.

Spark calls :meth:`AckDriver.handle_batch` at least once for each batch, with the state of that batch on disk but not
yet committed. Nothing is acknowledged before the whole batch is known to be free of errors, and the trackers change
before the ack table does. If it raises, Spark does not commit the batch, the query ends, and these trackers are
discarded: the next driver rebuilds them from the committed state (``restore``) and receives the same batch again.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from threading import Lock

from pyspark.sql import DataFrame, Row

from flushtracker import errors
from flushtracker.delta.ack_table import AckRow, AckTable
from flushtracker.errors import FencedError, FlushtrackerError
from flushtracker.spark.committed_state import START_OVER, CommittedState
from flushtracker.spark.dead_letters import DeadLetters
from flushtracker.spark.group_state import DEAD_LETTER, ERROR, REPORT, UNREADABLE
from flushtracker.tracking.source_tracker import Blocking, Report, SourceTrackers
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)


class StoppedError(FlushtrackerError):
    """The job was asked to stop before this batch began; none of the batch was processed."""

    exit_code = 0


class AckDriver:
    """Keeps a tracker for each source. ``lock`` is held while a batch is handled; the stall watch shares it.

    ``last_batch_id`` is the last batch that began, ``finished_batch_id`` the last that was handled without an error.
    """

    def __init__(self, ack_table: AckTable, dead_letters: DeadLetters) -> None:
        self.lock = Lock()
        self.trackers = SourceTrackers(ack_table.last_ack)
        self.failure: BaseException | None = None
        self.last_batch_id: int | None = None
        self.finished_batch_id: int | None = None
        self._expected_batch_id = 0
        self.stopping = False
        self._ack_table = ack_table
        self._dead_letters = dead_letters

    def restore(self, state: CommittedState) -> None:
        """Rebuild the trackers from the committed state, and append the acks that a lost or new table lacks."""
        self.trackers.apply(state.reports)
        self._expected_batch_id = state.batch_id + 1
        self._acknowledge({source: tracker.ack_lsn for source, tracker in self.trackers.items()}, state.batch_id)

    def handle_batch(self, batch: DataFrame, batch_id: int) -> None:
        """The function for ``foreachBatch``. Keeps what it raises in ``failure``, because Spark reduces it to text."""
        try:
            with self.lock:
                self._handle(batch, batch_id)
        except BaseException as error:
            self.failure = error
            raise

    def _handle(self, batch: DataFrame, batch_id: int) -> None:
        if self.stopping:
            raise StoppedError(f"stopped before batch {batch_id}")
        if batch_id != self._expected_batch_id:
            # Batches that were planned but are not in the committed state would be skipped, along with their shapes.
            raise FencedError(
                f"the checkpoint continues with batch {batch_id}, but its last committed state is that of batch "
                f"{self._expected_batch_id - 1}, so this driver has been fenced by another driver, or the checkpoint "
                f"is incomplete: let only one driver run, restore a complete copy, or {START_OVER}"
            )
        self._ack_table.require_not_fenced()
        self.last_batch_id = batch_id
        self._expected_batch_id = batch_id + 1
        started = time.monotonic()
        # Computed once: a second action on it would run the stateful operator again.
        batch.persist()
        try:
            rows = batch.where(f"kind <> '{DEAD_LETTER}'").collect()
            _raise_first_error(rows)
            self._apply(rows, batch_id, started)
            # Only now: they delay nothing but the next batch, and if they fail, the acks are right all the same.
            if dead_letters := sum(row["events"] for row in rows if row["kind"] == UNREADABLE):
                self._dead_letters.append(batch, batch_id, dead_letters)
        finally:
            batch.unpersist()
        self.finished_batch_id = batch_id

    def _apply(self, rows: list[Row], batch_id: int, started: float) -> None:
        reports = [row for row in rows if row["kind"] == REPORT]
        acks = self.trackers.apply(Report(row["source"], row["shape_group"], row["report"]) for row in reports)
        self._acknowledge(acks, batch_id)
        events: Counter[str] = Counter()
        for row in reports:
            events[row["source"]] += row["events"]
        for source in sorted(events):
            self._log_batch(source, batch_id, events[source], started)

    def _acknowledge(self, acks: Mapping[str, int], batch_id: int) -> None:
        """Append the acks of all sources in one commit."""
        rows = [self._ack_row(source, ack_lsn, batch_id) for source, ack_lsn in sorted(acks.items()) if ack_lsn >= 0]
        if rows:
            self._ack_table.append(*rows)

    def _ack_row(self, source: str, ack_lsn: int, batch_id: int) -> AckRow:
        tracker = self.trackers[source]
        last_seen_lsn, blocking = tracker.last_seen_offset.tx_offset, tracker.blocking()
        return AckRow(
            source=source,
            batch_id=batch_id,
            ack_lsn=ack_lsn,
            last_seen_lsn=last_seen_lsn if last_seen_lsn >= 0 else None,
            pending_shapes=tracker.pending_shapes,
            blocking_shape=blocking.shape_id if blocking else None,
            blocking_since=datetime.fromtimestamp(blocking.pending.since_ms / 1000, timezone.utc) if blocking else None,
            acked_at=datetime.now(timezone.utc),
        )

    def _log_batch(self, source: str, batch_id: int, events: int, started: float) -> None:
        tracker = self.trackers[source]
        blocking = tracker.blocking()
        logger.info(
            "batch done batch_id=%d source=%s ack_lsn=%s pending_shapes=%d blocking_shape=%s events=%d ms=%d",
            batch_id,
            source,
            format_lsn(tracker.ack_lsn) if tracker.ack_lsn >= 0 else "none",
            tracker.pending_shapes,
            blocking.shape_id if blocking else "none",
            events,
            (time.monotonic() - started) * 1000,
        )

    def stalled(self, now_ms: int, grace_ms: int) -> list[tuple[str, Blocking]]:
        """Each shape without progress for ``grace_ms``, with its source; waits for a running batch."""
        with self.lock:
            return [
                (source, blocking)
                for source, tracker in sorted(self.trackers.items())
                for blocking in tracker.stalled(now_ms, grace_ms)
            ]


def _raise_first_error(rows: list[Row]) -> None:
    """Raise a group's error with its own class: the first by place, so that every run reports the same one."""
    failed = sorted((row["reason"], row["report"]) for row in rows if row["kind"] == ERROR)
    if failed:
        reason, name = failed[0]
        raise getattr(errors, name)(reason)
