"""``EvictionPolicy``: which shape to remove so that the slot's WAL becomes free, if any.

Removing a shape is permanent, and frees nothing if the shape is not what holds the WAL. So one is chosen only if all of
this has been true at every look for the grace period (:class:`_Look`):

- the slot's figures and the job's document are of now, and the job is the only one that knows the source;
- the job's ack is the one that capture has read, and the slot is confirmed up to it: so the slot waits for the job's
  next ack, not for capture, and not for a job that is dead or acknowledges something else;
- the same shape holds the ack, and has made no progress. It is the first of the job's holders, and no other is looked
  at.

and if, over this period,

- the job has gone through a batch, and has seen all that capture had published at its beginning: so it is not behind,
  and has not merely failed to read that the shape was flushed;
- the server has written WAL. At an idle server time passes, but nothing accumulates;
- no eviction is still without effect, and the last hour had fewer than ``at_most_per_hour``;

and if it holds at least ``at_least_bytes``: the server removes WAL in files of 16 MiB, so what is less frees nothing.

Then the shape goes if it is pending without progress for longer than ``remove_after``; or if the slot retains more than
its limit, at least half of which this shape holds. The other half may be an open transaction, which no removal ends.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from flushtracker.capture.stall_config import StallRule
from flushtracker.config.byte_size import bytes_text
from flushtracker.config.duration import seconds_text
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.job_status import Holder, JobStatus, SourceStatus

FRESH_MS: Final = 30_000
"""A document or figure that is older, or as much ahead of capture's clock, counts for nothing."""
HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Decision:
    """The shape of ``source`` to remove, and why, as its entry in the registry will say; or ``None``, and why not.

    ``is_postponed``: one is to go, but not within this hour.
    """

    source: str
    shape_id: str | None
    reason: str
    is_postponed: bool = False


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look found in order: who holds the ack since when, and how far everything was."""

    at_ms: int
    source: str
    shape_id: str
    since_ms: int
    started_at_ms: int
    batch_id: int
    published_lsn: int
    written_lsn: int


class EvictionPolicy:
    """Decides by the documents of capture and of the job alone. Call :meth:`decide` every few seconds."""

    def __init__(self, rule: StallRule) -> None:
        self._rule = rule
        self._looks: deque[_Look] = deque()

    def decide(self, now_ms: int, capture: CaptureStatus, job: JobStatus | None) -> Decision:
        """What to do at ``now_ms``; ``job`` is ``None`` if there is no document of a job that knows the source."""
        source = _source_of(capture, job)
        reason = _capture_fault(now_ms, capture) or _job_fault(now_ms, capture, job, source)
        if reason is not None or job is None or source is None or capture.slot is None or job.batch_id is None:
            self._looks.clear()
            return Decision(capture.source or "", None, reason or "there is nothing to decide by")
        holder = source.holders[0]
        look = _Look(
            now_ms,
            source.source,
            holder.shape_id,
            holder.since_ms,
            job.started_at_ms,
            job.batch_id,
            capture.published_lsn or 0,
            capture.slot.written_lsn,
        )
        first = self._first_look(look)
        reason = self._not_yet(look, first, source, holder)
        if reason is not None:
            return Decision(source.source, None, reason)
        cause = self._cause(job.at_ms - holder.since_ms, holder, capture.slot)
        if cause is None:
            return Decision(source.source, None, f"{holder.shape_id!r} is within the limits")
        recent = sum(eviction.at_ms > now_ms - HOUR_MS for eviction in capture.evictions)
        if recent >= self._rule.at_most_per_hour:
            reason = f"{holder.shape_id!r} waits: evictions of the last hour: {recent}, which is stall.at_most_per_hour"
            return Decision(source.source, None, reason, is_postponed=True)
        return Decision(source.source, holder.shape_id, cause)

    def _first_look(self, look: _Look) -> _Look:
        """Keep the looks of a little more than the grace period, all at the same stall; return the oldest."""
        looks = self._looks
        if looks and (_stall(looks[-1]) != _stall(look) or not 0 <= look.at_ms - looks[-1].at_ms <= FRESH_MS):
            looks.clear()
        looks.append(look)
        while len(looks) > 1 and look.at_ms - looks[1].at_ms >= self._rule.grace_ms:
            looks.popleft()
        return looks[0]

    def _not_yet(self, look: _Look, first: _Look, source: SourceStatus, holder: Holder) -> str | None:
        """Why the stall has not been seen for long enough, or holds nothing; ``None`` if it has."""
        if look.at_ms - first.at_ms < self._rule.grace_ms:
            return f"{holder.shape_id!r} has not been seen to hold for stall.grace"
        if holder.held_bytes < self._rule.at_least_bytes:
            return f"{holder.shape_id!r} holds {bytes_text(holder.held_bytes)}, less than stall.at_least"
        if look.batch_id <= first.batch_id:
            return "the job has gone through no batch for stall.grace"
        if (source.last_seen_lsn or 0) < first.published_lsn:
            return "the job is behind: it has not seen what was published before"
        if look.written_lsn <= first.written_lsn:
            return "the server is idle"
        return None

    def _cause(self, stalled_ms: int, holder: Holder, slot: SlotStatus) -> str | None:
        """Why the shape is to go, as the registry will say it; ``None`` if it is within the limits."""
        rule, limit = self._rule, None
        if rule.remove_after_ms is not None and stalled_ms > rule.remove_after_ms:
            limit = "stall.remove_after"
        elif rule.retained is not None and 2 * holder.held_bytes >= slot.retained_bytes:
            limit = rule.retained.reached(slot.retained_bytes, slot.safe_wal_bytes)
        if limit is None:
            return None
        return (
            f"its writer made no progress for {seconds_text(stalled_ms / 1000)}, and it held "
            f"{bytes_text(holder.held_bytes)} of the {bytes_text(slot.retained_bytes)} of WAL that the slot retained, "
            f"over {limit}"
        )


def _stall(look: _Look) -> tuple[str, str, int, int]:
    return look.source, look.shape_id, look.since_ms, look.started_at_ms


def _source_of(capture: CaptureStatus, job: JobStatus | None) -> SourceStatus | None:
    if job is None:
        return None
    return next((source for source in job.sources if source.source == capture.source), None)


def _capture_fault(now_ms: int, capture: CaptureStatus) -> str | None:
    """Why capture's side says nothing about who holds the slot; ``None`` if it does."""
    slot = capture.slot
    if not capture.is_connected or capture.published_lsn is None:
        return "capture is not connected"
    if slot is None or abs(now_ms - slot.at_ms) > FRESH_MS:
        return "the slot's figures are not of now"
    return "the slot is lost" if slot.wal_status == "lost" else None


def _job_fault(now_ms: int, capture: CaptureStatus, job: JobStatus | None, source: SourceStatus | None) -> str | None:
    """Why the job's side says nothing about it; ``None`` if it does."""
    if job is None or abs(now_ms - job.at_ms) > FRESH_MS:
        return "there is no document of the tracking job that is of now"
    if not job.is_ready or job.batch_id is None or source is None:
        return "the tracking job does not know the source yet"
    if source.ack_lsn != capture.acknowledged_lsn:
        return "the job's ack is not the one that capture has read"
    confirmed_lsn = None if capture.slot is None else capture.slot.confirmed_lsn
    if confirmed_lsn is None or (source.ack_lsn is not None and confirmed_lsn <= source.ack_lsn):
        return "the slot is not confirmed up to the ack"
    if not source.holders:
        return "no shape holds the ack"
    return _removal_under_way(source.holders[0], capture)


def _removal_under_way(holder: Holder, capture: CaptureStatus) -> str | None:
    evicted = {eviction.shape_id for eviction in capture.evictions}
    if holder.shape_id in evicted:
        return f"{holder.shape_id!r} is removed already, and the job has still to see that"
    return None
