"""SIGTERM and Ctrl-C as a request to stop in good order: as an event to wait for, or as an interruption."""

import signal
from threading import Event
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def set_on_signals(stop: Event) -> None:
    """Let SIGTERM and SIGINT set ``stop`` from now on; call it from the main thread."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())


class StopRequest:
    """From now on, the first of the two signals makes the request, and any later one changes nothing.

    As long as ``interrupts`` is true, it also raises ``KeyboardInterrupt``, which ends whatever is waiting at once.
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
