"""``AnswerDeadline``: ends a blocking call on a connection whose server process hangs.

``statement_timeout`` is enforced by the server process itself. One that hangs, in a system call or because it was
stopped, enforces nothing, while its kernel still answers TCP. A call of libpq blocks until the socket is shut down.
"""

import os
import socket
import threading
from contextlib import suppress
from types import TracebackType


class AnswerDeadline:
    """A context manager that shuts the socket ``file_number`` down if its body takes longer than ``seconds``."""

    def __init__(self, file_number: int, seconds: float) -> None:
        # A duplicate, so that the number cannot meanwhile become another file's.
        self._socket = socket.socket(fileno=os.dup(file_number))
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.daemon = True
        self.has_passed = False

    def __enter__(self) -> "AnswerDeadline":
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        self._socket.close()

    def _shut_down(self) -> None:
        self.has_passed = True
        # Meanwhile the server may have closed the connection by itself.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
