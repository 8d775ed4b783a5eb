"""``Startup``: says what the demo is doing while it starts, which takes a minute or more, most of it for Spark."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_STEPS: Final = {  # log, what shows that the part has started, what is said then
    "capture": ("capturing source=", "capture reads the slot"),
    "tracker": ("query started", "the tracker's Spark has started, and reads from Kafka"),
    "writers": ("query started", "the writers' Spark has started, and reads from Kafka"),
}
_FIRST_ACK: Final = "the first ack"
_REPEATED_AFTER_S: Final = 10.0


class Startup:
    """The start of the demo in ``folder``, whose parts log to files there; ``say`` is called with each line."""

    def __init__(self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._say = say
        self._clock = clock
        self._started_s = self._said_s = clock()
        self._waits_for = [*_STEPS, _FIRST_ACK]

    def say(self, line: str) -> None:
        """Say the line, after the seconds since the beginning."""
        self._said_s = self._clock()
        self._say(f"[{self._said_s - self._started_s:.0f} s] {line}")

    def check(self, *, has_ack: bool) -> None:
        """Say which parts have started since the last call, or from time to time which have not."""
        if not self._waits_for:
            return
        for part, (mark, line) in _STEPS.items():
            if part in self._waits_for and mark in self._log(part):
                self._waits_for.remove(part)
                self.say(line)
        if has_ack and _FIRST_ACK in self._waits_for:
            self._waits_for.remove(_FIRST_ACK)
            self.say("first ack: from here on, the slot is confirmed")
        if not self._waits_for:
            self.say("everything runs")
        elif self._clock() - self._said_s >= _REPEATED_AFTER_S:
            self.say(f"waiting for {', '.join(self._waits_for)}")

    def _log(self, part: str) -> str:
        path = self._folder / f"{part}.log"
        return path.read_text(errors="replace") if path.exists() else ""
