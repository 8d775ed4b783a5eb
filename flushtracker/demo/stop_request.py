"""``StopRequest``: SIGTERM and Ctrl-C, taken once."""

import signal
from types import FrameType


class StopRequest:
    """From now on, the first of the two signals makes the request, and any later one changes nothing.

    As long as ``interrupts`` is true, it also raises ``KeyboardInterrupt``, so that whatever waits is left at once.
    """

    def __init__(self) -> None:
        self.is_made = False
        self.interrupts = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_made:
            return
        self.is_made = True
        if self.interrupts:
            raise KeyboardInterrupt
