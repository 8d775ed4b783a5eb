"""What a client has for certain, so that it can be shown a tail's transactions.

A client at a place has everything up to that transaction. If the log has nothing after that, the client also has
everything up to the cut, because the log is complete up to there. The first event of a quiet shape after capture has
reconnected follows an offset far past the shape's last transaction, so the cut is what links such a client.

A tail's transactions are those of the source, whatever snapshot a client started from. Which of them the client already
has is known only for the snapshot that the last poll found: others are the log's business.
"""

from flushtracker.errors import PositionError
from flushtracker.serve.handle import Handle
from flushtracker.serve.seen_shape import SeenShape


def reached_by(seen: SeenShape, handle: Handle, place: int) -> int | None:
    """The LSN up to which a client with this handle has everything, if it is at the transaction or the cut ``place``.

    ``None`` if only the log can tell how the client goes on.
    """
    if handle.digest != seen.facts.digest or incarnation_of(seen) is None or not _knows_rows_of(seen, handle, place):
        return None
    return max(place, -1 if seen.cut is None or place < seen.tx else seen.cut)


def incarnation_of(seen: SeenShape) -> int | None:
    """The incarnation of a live shape; ``None`` if it has ended, or its log has more than what clients are shown."""
    entry, snapshot = seen.found.entry, seen.found.snapshot
    if entry is None or entry.removed_at is not None or seen.found.has_subqueries or seen.selection is not None:
        return None
    incarnation = entry.definition.incarnation
    return incarnation if snapshot is None or snapshot.incarnation == incarnation else None


def _knows_rows_of(seen: SeenShape, handle: Handle, place: int) -> bool:
    """Whether the client has exactly what the seen snapshot contains, and all transactions up to its place.

    It started from that snapshot, or that is a fold of one that it started from, and it is past the fold's horizon.
    """
    if handle.attempt == seen.found.attempt:
        return True
    snapshot = seen.found.snapshot
    if snapshot is None or not snapshot.is_fold or handle.attempt > seen.found.attempt:
        return False
    try:
        seen.require_followed(handle, place)
    except PositionError:
        return False
    return True
