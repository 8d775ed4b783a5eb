"""``LiveView``: the status of a slot with its last minute and the last messages, while a program runs everything."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from flushtracker.config.units import bytes_text
from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.screen import Screen, replace_unprintable, terminal_width
from flushtracker.operate.status.slot_view import SlotView
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.capture_status import SlotStatus

_LOOKS: Final = 60
_MESSAGES: Final = 5
_MS_BETWEEN_BLOCKS: Final = 5_000
_BARS: Final = "▁▂▃▄▅▆▇█"


class LiveView:
    """Messages are printed by ``print_line``, until a terminal is drawn, which shows the last of them."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._said: deque[str] = deque(maxlen=_MESSAGES)
        self._is_drawn = False
        self._last_minute = LastMinute()

    def say(self, line: str) -> None:
        (self._said.append if self._is_drawn else self._print_line)(line)

    @contextmanager
    def shown(self, slot: SlotView, config_arguments: Sequence[str]) -> Iterator[Callable[[], None]]:
        """Yields what shows the slot: a terminal is redrawn, other output gets a new block every five seconds.

        ``config_arguments`` name the configuration in the commands that are printed.
        """
        shown_at_ms = -_MS_BETWEEN_BLOCKS
        replace_unprintable()
        with Screen() as screen:
            self._is_drawn = screen.is_terminal

            def show() -> None:
                nonlocal shown_at_ms
                overview = slot.query()
                self._last_minute.add(overview.slot.value)
                if self._is_drawn or overview.at_ms - shown_at_ms >= _MS_BETWEEN_BLOCKS:
                    shown_at_ms = overview.at_ms
                    screen.show(self._lines(overview, config_arguments))

            try:
                yield show
            finally:
                self._is_drawn = False

    def _lines(self, overview: Overview, config_arguments: Sequence[str]) -> list[str]:
        verdict = judge(overview, Limits())
        status = overview_lines(overview, verdict, width=terminal_width(), config_arguments=config_arguments)
        said = ["", *self._said] if self._said else []
        return [*status, "", *self._last_minute.lines(), *said]


class LastMinute:
    """The slot in the last sixty readings, one per second."""

    def __init__(self) -> None:
        self._slots: deque[SlotStatus] = deque(maxlen=_LOOKS)

    def add(self, slot: SlotStatus | None) -> None:
        """Add a reading; ``None``, if the slot was not found, is ignored."""
        if slot is not None:
            self._slots.append(slot)

    def lines(self) -> list[str]:
        """Show the retained WAL and the rate of writes; no lines before the second reading."""
        if len(self._slots) < 2:
            return []
        first, last = self._slots[0], self._slots[-1]
        retained = [slot.retained_bytes for slot in self._slots]
        bytes_per_s = (last.written_lsn - first.written_lsn) * 1_000 // max(1, last.at_ms - first.at_ms)
        return [
            f"retained WAL in the last minute: {bars(retained)}  at most {bytes_text(max(retained))}",
            f"the server writes {bytes_text(bytes_per_s)} of WAL each second",
        ]


def bars(values: list[int]) -> str:
    """One character for each value, its height in proportion to the greatest.

    >>> bars([0, 1, 4, 8, 2])
    '▁▂▅█▃'
    """
    top = max(values, default=0) or 1
    return "".join(_BARS[round(max(0, value) / top * (len(_BARS) - 1))] for value in values)
