"""The reasons why a request gets no rows, each with its status, and whether the client should retry."""

import logging
from typing import Final

from flushtracker.errors import (
    ConfigError,
    DecodeError,
    FlushtrackerError,
    PositionError,
    ShapeEndedError,
    SinkError,
    SnapshotMissingError,
)
from flushtracker.serve.rate_limited_log import RateLimitedLog

_log = RateLimitedLog(logging.getLogger(__name__))

RETRY_AFTER_S: Final = 2


class RefusalError(Exception):
    """A request is answered with ``status`` and this message; with ``retry_after_s`` it may succeed later."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequestError(RefusalError):
    """The request is malformed or not supported; clients stop."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


class UnavailableError(RefusalError):
    """The server cannot answer now; clients retry."""

    def __init__(self, message: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(503, message, retry_after_s=retry_after_s)


class RefetchError(Exception):
    """The log cannot be continued from the client's offset: the client gets a 409 and another handle.

    ``unsent_tx``, if that is the reason, is a transaction without messages, because it empties the shape or is too
    large: clients cannot start with earlier rows.
    """

    def __init__(self, unsent_tx: int | None = None) -> None:
        super().__init__()
        self.unsent_tx = unsent_tx


def refusal_of(error: FlushtrackerError) -> RefusalError:
    """The client's error; messages that name sources and paths are logged instead."""
    if not isinstance(error, _ORDINARY):
        _log(logging.WARNING, "request refused reason=%s", error)
    for kind, refusal in _REFUSALS:
        if isinstance(error, kind):
            return refusal
    return RefusalError(500, "unexpected error; the server's log has it")


_ORDINARY: Final = (ShapeEndedError, SnapshotMissingError, PositionError)
_UNMADE: Final = (
    "the shape's rows cannot be made: its table had rows of which its log has no snapshot, and then log=changes_only "
    "has its changes; or a condition has no outcome for a row, as where the row lacks a column that was added later, "
    "until flushtracker resync; the server's log has which"
)
_REFUSALS: Final[tuple[tuple[type[FlushtrackerError], RefusalError], ...]] = (
    (ShapeEndedError, RefusalError(410, "the shape was removed or has ended, and changes no more")),
    (SnapshotMissingError, UnavailableError("the shape has no snapshot of its table's rows yet", 5)),
    (PositionError, UnavailableError("the shape has changed meanwhile")),
    (SinkError, UnavailableError("the tables cannot be read now")),
    (DecodeError, RefusalError(422, _UNMADE)),
    (ConfigError, RefusalError(404, "there is no such shape of the source that is served")),
)
