"""``Follower``: a client that has the rows of a shape and continues with its log."""

from dataclasses import dataclass

from flushtracker.errors import PositionError
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.shape_log.position import Position


@dataclass(frozen=True, slots=True)
class Follower:
    """A client with a handle of the shape's current log, and everything up to the transaction ``tx``.

    ``sent_lsn`` is the LSN after which it continues, if that is later. With ``cuts`` it also waits for a later LSN.
    """

    seen: SeenShape
    handle: Handle
    tx: int
    sent_lsn: int = 0
    cuts: bool = False

    @classmethod
    def of(cls, request: ShapeRequest, seen: SeenShape, handle: Handle, offset: ClientOffset) -> "Follower":
        # There is nothing between the last transaction and a later place, and reads from either are shared.
        return cls(seen, handle, min(offset.tx, seen.tx), offset.tx, request.cuts)

    @property
    def position(self) -> Position:
        return self.seen.position(self.handle, self.tx)

    @property
    def has_more(self) -> bool:
        return self.seen.found.has_more(self.tx)

    @property
    def has_update(self) -> bool:
        """Whether there is something that it waits for."""
        return self.has_more or (self.cuts and (self.seen.lsn(self.tx) or 0) > self.sent_lsn)


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
