"""Why a request gets no rows: each reason with its status, and whether a client is to try again."""

from typing import Final

RETRY_AFTER_S: Final = 2


class RefusalError(Exception):
    """A request is answered with ``status`` and this message; ``retry_after_s`` if it may succeed later."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequestError(RefusalError):
    """The request is malformed, or asks for something that is not served; clients stop."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


class UnavailableError(RefusalError):
    """The server cannot answer now; clients try again."""

    def __init__(self, message: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(503, message, retry_after_s=retry_after_s)


class RefetchError(Exception):
    """The log cannot be continued from the client's offset: it gets a 409 and another handle.

    ``unsent_tx``, if that is why, is the transaction for which no messages are sent, because it empties the shape or is
    too large: rows from before it are none to begin with.
    """

    def __init__(self, unsent_tx: int | None = None) -> None:
        super().__init__()
        self.unsent_tx = unsent_tx
