"""The driver's side of a micro-batch: turns the groups' rows into one ack per source.

Nothing is acknowledged before the whole batch is known to be free of errors. The trackers change before the ack table
does: if writing it fails, they are discarded, and the next driver rebuilds them from the committed state
(``AckDriver.restore``). After each batch the live status shows what holds each ack, whether or not it has advanced.

A source with a gap is set aside: it gets no further ack, and the others continue. If all are set aside, the job ends.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final

from pyspark.sql import DataFrame, Row, SparkSession

from flushtracker.errors import GapError
from flushtracker.spark.batch_driver import BatchDriver
from flushtracker.spark.batch_lsns import as_property
from flushtracker.spark.committed_state import Remedies, read_state_rows
from flushtracker.spark.workers import raise_first_error
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.tracking.fragment_chain import check_chain_version
from flushtracker.tracking.job.dead_letters import DeadLetters
from flushtracker.tracking.job.group_state import DEAD_LETTER, REFUSED, REPORT
from flushtracker.tracking.job.live_job_status import LiveJobStatus
from flushtracker.tracking.packed_state import START_OVER
from flushtracker.tracking.shape_group import check_group_version
from flushtracker.tracking.source_tracker import CHAIN, ReportRow, SourceTrackers
from flushtracker.wal.lsn import format_lsn

logger = logging.getLogger(__name__)


REMEDIES: Final = Remedies(
    "change it back, set track.checkpoint to a new path, or start once with --recover",
    START_OVER,
)


@dataclass(frozen=True, slots=True)
class CommittedReports:
    """The last report of every group when ``batch_id`` was committed; -1 if no batch was."""

    batch_id: int = -1
    reports: list[ReportRow] = field(default_factory=list)


def read_committed_reports(spark: SparkSession, checkpoint: str, shape_groups: int) -> CommittedReports:
    """Read the last committed batch's state.

    Raises:
        StateError: the state cannot be read, or was written with another number of shape groups, or by a release with
            another format.
    """
    fields = ("report", "substring(packed, 1, 1) AS version")
    batch_id, rows = read_state_rows(spark, checkpoint, shape_groups, fields, REMEDIES)
    for row in rows:
        check = check_chain_version if row["shape_group"] == CHAIN else check_group_version
        check(bytes(row["version"]))
    return CommittedReports(batch_id, [ReportRow(row["source"], row["shape_group"], row["report"]) for row in rows])


class AckDriver(BatchDriver):
    """Keeps a tracker for each source; ``status`` shows their state. ``resend`` is the remedy for a gap."""

    def __init__(
        self, ack_table: AckTable, dead_letters: DeadLetters, status: LiveJobStatus, resend: str = START_OVER
    ) -> None:
        super().__init__(REMEDIES, status)
        self.trackers = SourceTrackers(ack_table.last_ack)
        self._ack_table = ack_table
        self._dead_letters = dead_letters
        self._status = status
        self._resend = resend
        self._logged_gaps: set[str] = set()

    def restore(self, state: CommittedReports) -> None:
        """Rebuild the trackers from the committed state, and append acks missing from a lost or new table.

        Raises:
            GapError: every source has a gap.
        """
        self.trackers.apply(state.reports)
        self._set_aside()
        self.expected_batch_id = state.batch_id + 1
        self._acknowledge({source: tracker.ack_lsn for source, tracker in self.trackers.items()}, state.batch_id)
        self._status.note_sources(self.trackers)

    def require_not_fenced(self) -> None:
        """Raise ``SinkError`` if another driver writes to the ack table."""
        self._ack_table.require_not_fenced()

    def require_no_gap(self) -> None:
        """Raise ``GapError`` if a source is set aside."""
        gaps = self.trackers.gaps()
        if gaps:
            raise GapError(f"{gaps[min(gaps)]}: {self._resend}")

    def _set_aside(self) -> None:
        """Log each new gap; raises ``GapError`` if every source has one."""
        gaps = self.trackers.gaps()
        if self.trackers.all_set_aside:
            raise GapError(gaps[min(gaps)])
        for source in sorted(gaps.keys() - self._logged_gaps):
            logger.error("source set aside source=%s: %s: %s", source, gaps[source], self._resend)
        self._logged_gaps = set(gaps)

    def process(self, batch: DataFrame, batch_id: int) -> None:
        """Acknowledge what the groups report, unless one reports an error."""
        started = time.monotonic()
        # Groups forget what an ack has passed, even an ack that they do not know because their state is older.
        acked = {source: tracker.ack_lsn for source, tracker in self.trackers.items() if tracker.ack_lsn >= 0}
        batch.sparkSession.sparkContext.setLocalProperty(*as_property(acked))
        rows = batch.collect()
        raise_first_error(rows)
        events = self._apply(rows, batch_id, started)
        # After the acks: dead letters delay only the next batch, and a failure to write them is only logged.
        if refused := sum(row["events"] for row in rows if row["kind"] == REFUSED):
            self._dead_letters.append([row for row in rows if row["kind"] == DEAD_LETTER], batch_id, refused)
        self._status.note_events(events, refused)

    def _apply(self, rows: list[Row], batch_id: int, started: float) -> Counter[str]:
        """Acknowledge what the reports allow; return the number of events of each source."""
        reports = [row for row in rows if row["kind"] == REPORT]
        acks = self.trackers.apply(ReportRow(row["source"], row["shape_group"], row["report"]) for row in reports)
        self._set_aside()
        self._acknowledge(acks, batch_id)
        self._status.note_sources(self.trackers)
        events: Counter[str] = Counter()
        for row in reports:
            events[row["source"]] += row["events"]
        self._log_batch(batch_id, events, len(acks), started)
        return events

    def _acknowledge(self, acks: Mapping[str, int], batch_id: int) -> None:
        rows = [self._ack_row(source, ack_lsn, batch_id) for source, ack_lsn in sorted(acks.items()) if ack_lsn >= 0]
        if rows:
            self._ack_table.append(*rows)

    def _ack_row(self, source: str, ack_lsn: int, batch_id: int) -> AckRow:
        tracker = self.trackers[source]
        last_seen_lsn, blocking = tracker.last_seen_offset.tx_offset, next(iter(tracker.holders), None)
        return AckRow(
            source=source,
            batch_id=batch_id,
            ack_lsn=ack_lsn,
            last_seen_lsn=last_seen_lsn if last_seen_lsn >= 0 else None,
            pending_shapes=tracker.pending_shapes,
            blocking_shape=blocking.shape_id if blocking else None,
            blocking_since=datetime.fromtimestamp(blocking.since_ms / 1000, timezone.utc) if blocking else None,
            acked_at=datetime.now(timezone.utc),
        )

    def _log_batch(self, batch_id: int, events: Mapping[str, int], advanced: int, started: float) -> None:
        """Log one line; with several sources its numbers are totals."""
        ms, count = int((time.monotonic() - started) * 1000), sum(events.values())
        if len(events) > 1:
            pending = sum(self.trackers[source].pending_shapes for source in events)
            logger.info(
                "batch done batch_id=%d sources=%d acks_advanced=%d pending_shapes=%d events=%d ms=%d",
                *(batch_id, len(events), advanced, pending, count, ms),
            )
        for source in events if len(events) == 1 else ():
            tracker = self.trackers[source]
            blocking = next(iter(tracker.holders), None)
            logger.info(
                "batch done batch_id=%d source=%s ack_lsn=%s pending_shapes=%d blocking_shape=%s events=%d ms=%d",
                *(batch_id, source, format_lsn(tracker.ack_lsn) if tracker.ack_lsn >= 0 else "none"),
                *(tracker.pending_shapes, blocking.shape_id if blocking else "none", count, ms),
            )
