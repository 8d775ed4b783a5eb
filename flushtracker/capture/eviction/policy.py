"""``EvictionPolicy``: which shape to evict, if any, so that the server can remove the slot's WAL.

An eviction is permanent, and frees nothing if the shape is not what holds the WAL. So a shape is chosen only if all of
this was true at every check during the grace period (:class:`_Sample`):

- the slot's figures and the job's document are current; the job is the only one that knows the source, and has not set
  it aside;
- the job's ack is the one that capture has read, and the slot is confirmed up to it. So the slot waits for the job's
  next ack, not for capture, nor for a job that is dead or acknowledges something else;
- the same shape holds the ack, and has made no progress. It is the first of the job's holders; the others are not
  considered.

and if, over this period,

- the job has finished batches, the last one just now, and has seen everything that capture had published at the start
  of the period. So it does not hang, is not behind, and has not just missed a flush;
- the server has written WAL: on an idle server nothing accumulates;
- every eviction has taken effect, and there were fewer than ``at_most_per_hour`` in the last hour. A shape that became
  pending after its eviction was resynced, and may be evicted again;

and if it holds at least ``at_least_bytes``: the server removes WAL in files of 16 MiB, so less frees nothing.

Unless the rule allows it, no shape is evicted if others of the same writer stopped at the same moment
(:mod:`flushtracker.status.stall`). Their writer is down, and the next shape holds as much WAL, so all of them
would have to be evicted.

Then the shape is evicted if it was seen without progress for longer than ``remove_after``; or if the slot retains more
than its limit, and this shape holds at least half of it. The rest may be an open transaction, which no eviction ends.

``remove_after`` counts only time during which every check found capture and the job healthy, and the job not behind.
``since_ms`` survives a restart; but while capture, the job or the whole machine was down, the writer may have been down
too.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from flushtracker.capture.eviction.config import EvictionRule
from flushtracker.config.units import bytes_text, seconds_text
from flushtracker.errors import listed
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus
from flushtracker.status.stall import stopped_together

FRESH_MS: Final = 30_000
"""An older document or figure, or one further ahead of capture's clock, is ignored."""
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Decision:
    """The shape of ``source`` to evict, and the reason for its registry entry; or ``None``, and why not.

    ``is_postponed``: a shape is over a limit, but its writer is down, or there were too many evictions in the last
    hour.
    """

    source: str
    shape_id: str | None
    reason: str
    is_postponed: bool = False


@dataclass(frozen=True, slots=True)
class _Sample:
    """A check that found everything healthy: which shape holds the ack, since when, and all positions."""

    at_ms: int
    source: str
    shape_id: str
    since_ms: int
    started_at_ms: int
    batch_id: int
    seen_lsn: int
    published_lsn: int
    written_lsn: int


@dataclass(frozen=True, slots=True)
class _Order:
    """Capture and the job were healthy at every check from ``since_ms`` to ``at_ms``, and were the same ``runs``."""

    since_ms: int
    at_ms: int
    runs: tuple[str, int, int]

    @classmethod
    def after(cls, last: "_Order | None", at_ms: int, runs: tuple[str, int, int]) -> "_Order":
        """The state after a healthy check at ``at_ms``; ``last`` is the previous state."""
        if last is None or last.runs != runs or not 0 <= at_ms - last.at_ms <= FRESH_MS:
            return cls(at_ms, at_ms, runs)
        return cls(last.since_ms, at_ms, runs)


class EvictionPolicy:
    """Decides from the documents of capture and of the job. Call :meth:`decide` every few seconds."""

    def __init__(self, rule: EvictionRule) -> None:
        self._rule = rule
        self._samples: deque[_Sample] = deque()
        self._order: _Order | None = None

    def decide(self, now_ms: int, capture: CaptureStatus, job: JobStatus | None) -> Decision:
        """The decision at ``now_ms``; ``job`` is ``None`` without a document of a job that knows the source."""
        source = _source_of(capture, job)
        reason = _capture_fault(now_ms, capture) or _job_fault(now_ms, job, source)
        if reason is not None or job is None or source is None or capture.slot is None or job.batch_id is None:
            self._samples.clear()
            self._order = None
            return Decision(capture.source or "", None, reason or "there is nothing to decide by")
        order = self._order = _Order.after(
            self._order, now_ms, (source.source, capture.started_at_ms, job.started_at_ms)
        )
        reason = _holder_fault(source, capture)
        if reason is not None:
            self._samples.clear()
            return Decision(source.source, None, reason)
        holder = source.holders[0]
        sample = _Sample(
            now_ms,
            source.source,
            holder.shape_id,
            holder.since_ms,
            job.started_at_ms,
            job.batch_id,
            source.last_seen_lsn or 0,
            capture.published_lsn or 0,
            capture.slot.written_lsn,
        )
        first = self._first_sample(sample)
        if sample.seen_lsn < first.published_lsn:
            order = self._order = replace(order, since_ms=now_ms)
        reason = self._not_yet(sample, first, holder) or _hang(job)
        if reason is not None:
            return Decision(source.source, None, reason)
        cause = self._cause(job.at_ms - holder.since_ms, now_ms - order.since_ms, holder, capture.slot)
        if cause is None:
            return Decision(source.source, None, f"{holder.shape_id!r} is within the limits")
        reason = self._postponement(source, capture, now_ms)
        if reason is not None:
            return Decision(source.source, None, reason, is_postponed=True)
        return Decision(source.source, holder.shape_id, cause)

    def _postponement(self, source: SourceStatus, capture: CaptureStatus, now_ms: int) -> str | None:
        """Why the first holder is not evicted although it is over a limit; ``None`` if it is."""
        together = [repr(holder.shape_id) for holder in stopped_together(source)]
        if len(together) > 1 and not self._rule.if_writer_is_down:
            writer = repr(source.holders[0].writer)
            fact = f"{listed(together)} stopped at the same moment, so their writer {writer} is down"
            return f"{fact}: start it, or set capture.evict.if_writer_is_down"
        recent = sum(eviction.at_ms > now_ms - HOUR_MS for eviction in capture.evictions)
        if recent >= self._rule.at_most_per_hour:
            count = f"evictions in the last hour: {recent}, which is capture.evict.at_most_per_hour"
            return f"{source.holders[0].shape_id!r} must wait: {count}"
        return None

    def _first_sample(self, sample: _Sample) -> _Sample:
        """Keep the checks of a little more than the grace period, all of the same stall; return the oldest."""
        samples = self._samples
        if samples and (_stall(samples[-1]) != _stall(sample) or not 0 <= sample.at_ms - samples[-1].at_ms <= FRESH_MS):
            samples.clear()
        samples.append(sample)
        while len(samples) > 1 and sample.at_ms - samples[1].at_ms >= self._rule.grace_ms:
            samples.popleft()
        return samples[0]

    def _not_yet(self, sample: _Sample, first: _Sample, holder: Holder) -> str | None:
        """Why the stall is too short or too small to act on; ``None`` if it is not."""
        if sample.at_ms - first.at_ms < self._rule.grace_ms:
            return f"{holder.shape_id!r} has not held the ack for capture.evict.grace"
        if holder.held_bytes < self._rule.at_least_bytes:
            return f"{holder.shape_id!r} holds {bytes_text(holder.held_bytes)}, less than capture.evict.at_least"
        if sample.batch_id <= first.batch_id:
            return "the job has finished no batch for capture.evict.grace"
        if sample.seen_lsn < first.published_lsn:
            return "the job is behind: it has not seen what was published before"
        if sample.written_lsn <= first.written_lsn:
            return "the server is idle"
        return None

    def _cause(self, stalled_ms: int, seen_ms: int, holder: Holder, slot: SlotStatus) -> str | None:
        """Why the shape is evicted, for the registry; ``None`` if it is within the limits."""
        rule, limit = self._rule, None
        if rule.remove_after_ms is not None and min(stalled_ms, seen_ms) > rule.remove_after_ms:
            limit = "capture.evict.remove_after"
        elif rule.retained is not None and 2 * holder.held_bytes >= slot.retained_bytes:
            limit = rule.retained.reached(slot.retained_bytes, slot.safe_wal_bytes)
        if limit is None:
            return None
        return (
            f"its writer made no progress for {seconds_text(stalled_ms / 1000)}, and it held "
            f"{bytes_text(holder.held_bytes)} of the {bytes_text(slot.retained_bytes)} of WAL that the slot retained, "
            f"over {limit}"
        )


def _stall(sample: _Sample) -> tuple[str, str, int, int]:
    return sample.source, sample.shape_id, sample.since_ms, sample.started_at_ms


def _source_of(capture: CaptureStatus, job: JobStatus | None) -> SourceStatus | None:
    if job is None:
        return None
    return next((source for source in job.sources if source.source == capture.source), None)


def _capture_fault(now_ms: int, capture: CaptureStatus) -> str | None:
    """Why capture's document does not show what holds the slot; ``None`` if it does."""
    slot = capture.slot
    if not capture.is_connected or capture.published_lsn is None:
        return "capture is not connected"
    if slot is None or abs(now_ms - slot.at_ms) > FRESH_MS:
        return "the slot's figures are outdated"
    return "the slot is lost" if slot.wal_status == "lost" else None


def _job_fault(now_ms: int, job: JobStatus | None, source: SourceStatus | None) -> str | None:
    """Why the job's document does not show it; ``None`` if it does."""
    if job is None or abs(now_ms - job.at_ms) > FRESH_MS:
        return "there is no current document of the tracking job"
    if not job.is_ready or job.batch_id is None or source is None:
        return "the tracking job does not know the source yet"
    if source.gap is not None:
        return "the tracking job has set the source aside"
    if job.open_transactions:
        return "an open transaction hides records from the tracking job"
    return None


def _holder_fault(source: SourceStatus, capture: CaptureStatus) -> str | None:
    """Why no shape holds the slot although all is healthy, for example while the ack moves; ``None`` if one does."""
    if source.ack_lsn != capture.acknowledged_lsn:
        return "the job's ack is not the one that capture has read"
    confirmed_lsn = None if capture.slot is None else capture.slot.confirmed_lsn
    if confirmed_lsn is None or (source.ack_lsn is not None and confirmed_lsn <= source.ack_lsn):
        return "the slot is not confirmed up to the ack"
    if not source.holders:
        return "no shape holds the ack"
    first = source.holders[0]
    # One that became pending after its eviction was resynced.
    if any(each.shape_id == first.shape_id and each.at_ms >= first.since_ms for each in capture.evictions):
        return f"{first.shape_id!r} is already evicted, but the job has not seen that yet"
    return None


def _hang(job: JobStatus) -> str | None:
    """Why a fresh document may be outdated: it shows the state of the last batch."""
    if job.batch_at_ms is None or abs(job.at_ms - job.batch_at_ms) > FRESH_MS:
        return "the job's last batch is outdated"
    return None
