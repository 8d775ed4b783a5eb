"""``SubsetAnswers``: answers requests for subsets.

A client has an offset, and its stream continues there, or where the answer says. It may have rows of earlier subsets,
and it may ask for several at once. So that it misses no change:

1. A client with an offset keeps it, and its handle. It gets the rows as of that offset. If the log does not have these
   any more, it gets the newest ones. Then its stream cannot be continued either, and tells the client to begin again;
   an answer to a subset could not.
2. A client without an offset gets the newest rows, and an offset that the log had reached ``SINCE_S`` before. Another
   such answer may be on its way, by any server, and the client takes the offset of the one that comes last. So that
   must not be above the rows of the other. Changes that the client then gets again lead to the same rows.
3. A client that was shown more than the log has yet waits for it.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from flushtracker.serve.beginning import as_conflict, initial_handle
from flushtracker.serve.body import Body
from flushtracker.serve.handle import ClientOffset
from flushtracker.serve.parts import Parts
from flushtracker.serve.refusals import BadRequestError, RefetchError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_looks import ShapeLooks, require_same
from flushtracker.serve.shape_request import ShapeRequest
from flushtracker.serve.single_flight import Flight
from flushtracker.serve.subset.subset_rows import ReadSubset

SINCE_S: Final = 30.0
"""More than an answer is on its way while another server's look at the tables is outdated."""


@dataclass(frozen=True, slots=True)
class SubsetAnswer:
    """The rows, and where the client's stream continues; ``is_exact`` if the same request always gets the same."""

    handle: str
    offset: str
    schema: str
    body: Body
    is_exact: bool


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class SubsetAnswers:
    """For the event loop."""

    def __init__(self, parts: Parts, looks: ShapeLooks) -> None:
        self._parts = parts
        self._looks = looks
        self.now = utc_now

    async def answer(self, request: ShapeRequest) -> SubsetAnswer:
        """The answer to a request for a subset.

        Raises:
            BeginAgainError: its handle is none of this kind of server.
            RefusalError, FlushtrackerError: there is none.
        """
        if isinstance(request.start, ClientOffset):
            return await self._at(request, request.start)
        seen = await self._looks.reached(request, await self._looks.seen(request, fresh=request.is_returning))
        read = await self._read(request, seen, None)
        handle = initial_handle(request, read.shape.handle)
        offset = ClientOffset(read.since)
        return SubsetAnswer(str(handle), str(offset), read.shape.facts.schema, read.body, is_exact=False)

    async def _at(self, request: ShapeRequest, offset: ClientOffset) -> SubsetAnswer:
        """The answer for a client with an offset, which it keeps."""
        handle = request.handle
        seen = await self._looks.seen(request, fresh=False)
        if handle is None or handle.digest != seen.facts.digest or seen.is_older_than(handle):
            seen = await self._looks.seen(request, fresh=True)
        if handle is None:
            with as_conflict(request, seen):
                raise RefetchError
        seen = await self._looks.reached(request, seen)
        read = await self._read(request, seen, offset.tx)
        is_exact = read.is_exact and handle.digest == read.shape.facts.digest
        return SubsetAnswer(str(handle), str(offset), read.shape.facts.schema, read.body, is_exact)

    async def _read(self, request: ShapeRequest, seen: SeenShape, at: int | None) -> ReadSubset:
        subset, parts = request.subset, self._parts
        if subset is None:
            raise BadRequestError("no subset is asked for")
        seen.found.require_snapshot()
        by = self.now() - timedelta(seconds=SINCE_S)

        def read(flight: Flight[ReadSubset]) -> ReadSubset:
            began_s, rows = time.monotonic(), 0
            try:
                check = parts.precedence.standing_back(flight.check)
                check()
                found = parts.reads.subset(seen, subset, parts.subset_rules, at, by, check)
                rows = found.rows
            finally:
                parts.subset_counts.add(rows, time.monotonic() - began_s)
            return found

        # A read that began after an earlier look might lack what this client was shown.
        key = seen.handle, seen.found.version, at, subset
        found = await parts.subset_flights.share(key, read, lambda _: None, group=seen.shape_id)
        require_same(request, seen, found.shape.facts)
        return found
