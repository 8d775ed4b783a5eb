"""The handles of clients that start or start over, and what they were shown before.

A client never gets older rows than it was shown. A 409 gives it a handle with the last transaction that it was shown,
and a request to start with that handle waits until the log has the transaction. Handles and offsets of another log or
source do not count. If the log is an older copy, none counts, because it may never get that transaction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from flushtracker.serve.handle import ClientOffset, Handle, next_handle
from flushtracker.serve.refusals import RefetchError
from flushtracker.serve.seen_shape import SeenShape
from flushtracker.serve.shape_request import ShapeRequest


class BeginAgainError(Exception):
    """The client gets a 409 with the handle to start over with."""

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self.handle = handle


@contextmanager
def as_conflict(request: ShapeRequest, seen: SeenShape) -> Iterator[None]:
    """Turn ``RefetchError`` into the 409 with the handle with which the client starts over."""
    try:
        yield
    except RefetchError as error:
        handle = next_handle(seen.handle, request.handle, request.expired)
        raise BeginAgainError(replace(handle, shown=shown_to(request, seen))) from error


def initial_handle(request: ShapeRequest, current: Handle) -> Handle:
    """The handle of a new client: the one that it was given to start with, if that is still valid.

    It does not have what the client was shown: the next offset is not below that, and clients share cached answers.
    """
    handle, expired = request.handle, request.expired
    is_dropped = handle is not None and expired is not None and _generation(handle) == _generation(expired)
    if handle is not None and handle.is_generation_of(current) and not is_dropped:
        return replace(handle, shown=0)
    return next_handle(current, expired)


def shown_to(request: ShapeRequest, seen: SeenShape) -> int:
    """The transaction of this log up to which the client was shown the shape; 0 if that is not known."""
    found = [each for each in (request.handle, request.expired) if each is not None and _counts(each, seen)]
    shown = [each.shown for each in found]
    if isinstance(request.start, ClientOffset) and request.handle in found:
        shown.append(request.start.tx)
    return max(shown, default=0)


def _counts(handle: Handle, seen: SeenShape) -> bool:
    return seen.facts.is_log_of(handle) and not seen.is_older_than(handle)


def _generation(handle: Handle) -> tuple[str, int, int]:
    return *handle.begun, handle.generation
