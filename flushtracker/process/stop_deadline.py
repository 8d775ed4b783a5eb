"""``exit_if_hung``: ends a stopping process that hangs in a call that no signal interrupts."""

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final

from flushtracker.process.log_format import LogFormat, program_line
from flushtracker.process.program import STOP_SIGNALS

_POLL_MS: Final = 500


def exit_if_hung(name: str, is_stopping: Callable[[], bool], timeout_s: float, log_format: LogFormat = "text") -> None:
    """From now on, exit with 1 if the process still runs ``timeout_s`` after a stop signal or ``is_stopping``.

    Only for a program that may be killed at any point. Call it from the main thread, once the signals have handlers.
    Python runs a handler only between two instructions of the main thread, so not while that waits in a library for an
    unresponsive storage. But a pipe receives the signal's number at once, and a thread reads it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    arguments = (name, reader, is_stopping, timeout_s, log_format)
    Thread(target=_exit_after, args=arguments, name="stop-deadline", daemon=True).start()


def _exit_after(
    name: str, reader: int, is_stopping: Callable[[], bool], timeout_s: float, log_format: LogFormat
) -> None:
    stopping = select.poll()
    stopping.register(reader, select.POLLIN)
    while not is_stopping():
        if stopping.poll(_POLL_MS) and set(os.read(reader, 64)) & set(STOP_SIGNALS):
            break
    time.sleep(timeout_s)
    reason = f"not stopped after {timeout_s:.0f} s, so a storage may hang; exiting now, nothing is lost"
    reading = select.poll()
    reading.register(2, select.POLLOUT)
    # The log itself may hang because its reader does not read, or the reader may be gone.
    if reading.poll(_POLL_MS):
        with suppress(OSError):
            os.write(2, f"{program_line(name, reason, log_format, exit_code=1)}\n".encode())
    # Anything more graceful could wait for the call that hangs, or for a lock that it holds.
    os._exit(1)
