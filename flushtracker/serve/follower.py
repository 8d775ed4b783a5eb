"""``Follower``: a client that has the rows of a shape, and goes on with its log."""

from dataclasses import dataclass

from flushtracker.errors import PositionError
from flushtracker.serve.handle import Handle, Place
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.shape_log.position import Position


@dataclass(frozen=True, slots=True)
class Follower:
    """A client that has a handle of the shape's log as it is now, and all up to the transaction ``tx``.

    ``told``: the LSN after which it goes on, if that is later. ``cuts``: it waits for a later one, too.
    """

    seen: SeenShape
    handle: Handle
    tx: int
    told: int = 0
    cuts: bool = False

    @classmethod
    def of(cls, request: ShapeRequest, seen: SeenShape, handle: Handle, place: Place) -> "Follower":
        # Nothing is between the last transaction and a place after it, and what follows either is read once.
        return cls(seen, handle, min(place.tx, seen.tx), place.tx, request.cuts)

    @property
    def position(self) -> Position:
        return self.seen.position(self.handle, self.tx)

    @property
    def has_more(self) -> bool:
        return self.seen.found.has_more(self.tx)

    @property
    def has_news(self) -> bool:
        """Whether there is what it waits for."""
        return self.has_more or (self.cuts and (self.seen.lsn(self.tx) or 0) > self.told)


def followed(follower: Follower) -> Follower:
    """The follower, if its shape is still the one that its handle is of; raises ``RefetchError``."""
    require_followed(follower.seen, follower.handle, max(follower.tx, follower.told))
    return follower


def require_followed(seen: SeenShape, handle: Handle, tx: int) -> None:
    """Raise ``RefetchError`` if a client with this handle, and all up to ``tx``, cannot go on with the shape's log."""
    if handle.digest != seen.facts.digest:
        raise RefetchError
    try:
        seen.require_followed(handle, tx)
    except PositionError as error:
        raise RefetchError from error
