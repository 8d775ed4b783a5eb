"""Decides from a source's holders whether one shape is stuck, or the writer of several is down."""

from typing import Final

from flushtracker.status.job_status import Holder, SourceStatus

_PATIENCE_MS: Final = 60_000
"""It is normal for a shape to be pending for less time."""
_TOGETHER_MS: Final = 30_000
"""Longer than the job's batches and the writers' flushes, which determine when a shape was last seen to make
progress.
"""


def stopped_together(source: SourceStatus) -> tuple[Holder, ...]:
    """The first holder, and those of the same writer that stopped at the same moment: if there are any, no shape is
    stuck.

    Most likely their writer is down. Shapes of other writers are irrelevant, whenever they stopped. While nothing is
    stuck, most holders have the same time, too.
    """
    first = next(iter(source.holders), None)
    return tuple(
        each
        for each in source.holders
        if first and each.writer == first.writer and abs(each.since_ms - first.since_ms) <= _TOGETHER_MS
    )


def is_waiting_long(source: SourceStatus, at_ms: int) -> bool:
    """Whether the ack has waited for so long at ``at_ms``, by the job's clock, that an operator should look."""
    waiting_ms = 0 if source.waiting_since_ms is None else at_ms - source.waiting_since_ms
    return waiting_ms >= _PATIENCE_MS or source.stalled_shapes > 0


def frees_most(source: SourceStatus, ack_lsn: int | None, retained_bytes: int) -> bool:
    """Whether at least half of the slot's WAL could be removed if the ack moved to ``ack_lsn``."""
    if ack_lsn is None or source.last_seen_lsn is None:
        return False
    held_from_lsn = source.last_seen_lsn - source.holders[0].held_bytes
    return 2 * (ack_lsn - held_from_lsn) >= retained_bytes
