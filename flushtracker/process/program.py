"""The edge of a program: its log, its exit code, one line on stderr for an error, and a graceful stop.

SIGTERM and Ctrl-C are requests to stop: an event to wait for, or an interruption.
"""

import logging
import signal
import sys
import traceback
from collections.abc import Callable
from threading import Event
from types import FrameType
from typing import Final

from flushtracker.errors import FlushtrackerError

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_program(name: str, program: Callable[[], int], *, verbose: bool) -> int:
    """Return the exit code of ``program``; an error prints ``name: message``, with a traceback only if ``verbose``."""
    try:
        return program()
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001  the user gets one line, not a traceback
        if verbose:
            traceback.print_exc()
        known = isinstance(error, FlushtrackerError)
        message = str(error) if known else f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        print(f"{name}: {message}", file=sys.stderr)
        return error.exit_code if isinstance(error, FlushtrackerError) else 1


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send the log to stderr, one line per event."""
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")


def set_on_signals(stop: Event) -> None:
    """Make SIGTERM and SIGINT set ``stop`` from now on; call it from the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())


class StopRequest:
    """A request to stop, made by the first SIGTERM or SIGINT from now on; later signals change nothing.

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
