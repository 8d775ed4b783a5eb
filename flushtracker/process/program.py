"""The frame of a program: its log, its exit code, one line on stderr for an error, and a graceful stop.

SIGTERM and Ctrl-C are requests to stop: a flag to wait for, or an interruption.
"""

import logging
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable
from threading import Event
from types import FrameType
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.process.log_format import LogFormat, log_formatter, program_line

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_POLL_S: Final = 0.1


def run_program(name: str, program: Callable[[], int], *, verbose: bool, log_format: LogFormat = "text") -> int:
    """Return the exit code of ``program``; an error prints ``name: message``, with a traceback only if ``verbose``."""
    try:
        return program()
    except KeyboardInterrupt:
        print(program_line(name, "interrupted", log_format, exit_code=130), file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001  the user gets one line, not a traceback
        if verbose and log_format == "text":
            print(traceback_of(error), end="", file=sys.stderr)
        known = isinstance(error, FlushtrackerError)
        message = str(error) if known else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        exit_code = error.exit_code if isinstance(error, FlushtrackerError) else 1
        shown = traceback_of(error) if verbose else None
        print(program_line(name, message, log_format, exit_code=exit_code, traceback=shown), file=sys.stderr)
        return exit_code


def traceback_of(error: BaseException) -> str:
    """The traceback of an error and of its causes, without the texts of other packages' errors.

    These may quote their input, for example a configuration value that is a secret.
    """
    parts = []
    while True:
        text = f": {error}" if isinstance(error, FlushtrackerError) else ""
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        frames = "".join(traceback.format_tb(error.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{kind}{text}\n")
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            return "\nwhich led to:\n\n".join(reversed(parts))
        error = before


def print_status(name: str, line: str, log_format: LogFormat = "text") -> None:
    """Print a message of the program ``name`` on stderr, as JSON if its log is JSON."""
    print(program_line(name, line, log_format), file=sys.stderr, flush=True)


def log_to_stderr(level: int = logging.INFO, log_format: LogFormat = "text") -> None:
    """Send the log to stderr, one line per event, whatever the values in it contain."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_formatter(log_format))
    logging.basicConfig(level=level, handlers=[handler])
    # Python's own warnings would be lines of text between the objects.
    logging.captureWarnings(log_format == "json")


class StopFlag(Event):
    """An event for signal handlers: a plain flag, which is polled.

    An ``Event`` has a lock. If a signal arrives while the main thread holds it, a handler that sets the event
    deadlocks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for ``timeout`` seconds; return whether it is set."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _POLL_S))
        return self._is_set


def set_on_signals(stop: StopFlag) -> None:
    """Make SIGTERM and SIGINT set ``stop`` from now on; call it from the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())


class StopRequest:
    """A request to stop, made by the first SIGTERM or SIGINT from now on; later signals are ignored.

    While ``interrupts`` is true, the signal also raises ``KeyboardInterrupt``, which ends any wait at once.
    """

    def __init__(self, *, interrupts: bool = True) -> None:
        self.is_made = False
        self.interrupts = interrupts
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_made:
            return
        self.is_made = True
        if self.interrupts:
            raise KeyboardInterrupt
