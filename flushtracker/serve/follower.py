"""``Follower``: a client that has the rows of a shape and continues with its log.

It may be *ahead*: another server has shown it more than this one has seen. Then it waits until the log has caught up,
and can continue only if the log has what the client was shown.
"""

from dataclasses import dataclass, replace

from flushtracker.errors import PositionError
from flushtracker.serve.body import Page
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.shape_log.position import Position


@dataclass(frozen=True, slots=True)
class Follower:
    """A client with a handle of the shape's current log, and everything up to the transaction ``tx``.

    ``sent_lsn`` is the LSN after which it continues, if that is later. With ``cuts`` it also waits for a later LSN.
    ``tail_page``: what the tail has next for it, if that was looked up.
    ``is_proven``: the log is known to have everything up to there, so a read need not check it.
    """

    seen: SeenShape
    handle: Handle
    tx: int
    sent_lsn: int = 0
    cuts: bool = False
    is_proven: bool = False
    tail_page: Page | None = None

    @classmethod
    def of(cls, request: ShapeRequest, seen: SeenShape, handle: Handle, offset: ClientOffset) -> "Follower":
        # There is nothing between the last transaction and a later cut, and reads from either are shared.
        return cls(seen, handle, min(offset.tx, seen.tx), offset.tx, request.cuts).at(seen)

    def at(self, seen: SeenShape) -> "Follower":
        """The same client, by a later look at the shape."""
        place = max(self.tx, self.sent_lsn)
        if seen.is_behind(place):
            return replace(self, seen=seen, tx=place, is_proven=False)
        return replace(self, seen=seen, is_proven=self.is_proven or seen.proves(place))

    @property
    def position(self) -> Position:
        return self.seen.position(self.handle, self.tx)

    @property
    def has_more(self) -> bool:
        return self.seen.found.has_more(self.tx)

    @property
    def has_next(self) -> bool:
        return self.has_more or self.tail_page is not None

    @property
    def has_update(self) -> bool:
        """Whether there is something that it waits for."""
        return self.has_next or (self.cuts and (self.seen.lsn(self.tx) or 0) > self.sent_lsn)


def require_current(follower: Follower) -> Follower:
    """The follower, if its handle still matches the shape; raises ``RefetchError`` otherwise."""
    require_followed(follower.seen, follower.handle, max(follower.tx, follower.sent_lsn))
    return follower


def require_followed(seen: SeenShape, handle: Handle, tx: int) -> None:
    """Raise ``RefetchError`` if a client with this handle, and everything up to ``tx``, cannot continue with the
    shape's log.
    """
    if handle.digest != seen.facts.digest:
        raise RefetchError
    try:
        seen.require_followed(handle, tx)
    except PositionError as error:
        raise RefetchError from error
