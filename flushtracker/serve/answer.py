"""``Answer``: a part of a shape's rows or log, with the client's new offset."""

from dataclasses import dataclass

from flushtracker.serve.body import Body, Page
from flushtracker.serve.follower import Follower
from flushtracker.serve.handle import ClientOffset, Handle
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.serve.state_rows import StateRows


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of a shape, up to ``offset``; ``is_fixed`` if the same request always gets the same answer."""

    handle: Handle
    offset: ClientOffset
    schema: str
    body: Body
    is_up_to_date: bool
    is_fixed: bool = False
    lsn: int | None = None
    """See ``SeenShape.lsn``; only in an up-to-date answer."""


def is_newest(tx: int, version: int, seen: SeenShape) -> bool:
    """Whether nothing was found after a page or rows that reach ``tx`` and all of a ``version`` of the log."""
    return version >= seen.found.version or tx >= seen.tx


def offset_after(tx: int, lsn: int | None, request: ShapeRequest) -> ClientOffset:
    """The place from which an up-to-date client continues; with ``cuts``, the LSN that it was sent."""
    return ClientOffset(max(tx, lsn) if request.cuts and lsn is not None else tx)


async def state_answer(request: ShapeRequest, state: StateRows, handle: Handle, rows: int, seen: SeenShape) -> Answer:
    """The page that begins after ``rows`` of a shape's rows; raises ``RefetchError`` if there is none."""
    page = await state.page(rows)
    if page is None:
        raise RefetchError
    schema = state.facts.schema
    if not (page.is_end and is_newest(state.tx, state.version, seen)):
        is_fixed = rows > 0 and not page.is_end
        return Answer(
            handle, ClientOffset(page.tx, page.rows), schema, page.body, is_up_to_date=False, is_fixed=is_fixed
        )
    lsn = seen.lsn(page.tx)
    if lsn is not None and state.handle.attempt != seen.handle.attempt:
        # The rows are of a later snapshot than the last poll found, so their LSN is not known.
        lsn = -1
    return Answer(handle, offset_after(page.tx, lsn, request), schema, page.body, is_up_to_date=True, lsn=lsn)


def log_answer(request: ShapeRequest, follower: Follower, page: Page, *, is_up_to_date: bool) -> Answer:
    seen, tx, lsn = follower.seen, max(page.tx, follower.sent_lsn), None
    offset = ClientOffset(tx)
    if is_up_to_date:
        lsn = seen.lsn(tx)
        offset = offset_after(tx, lsn, request)
    is_fixed = not page.is_end
    return Answer(follower.handle, offset, seen.facts.schema, page.body, is_up_to_date, is_fixed, lsn)
