"""What the demo shows: the output of ``flushtracker status`` with the last minute. Needs ``rich``."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text

from flushtracker.config.units import bytes_text
from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.capture_status import SlotStatus

Show: TypeAlias = Callable[[Overview], None]

_LOOKS: Final = 60
_MS_BETWEEN_BLOCKS: Final = 5_000
_BARS: Final = "▁▂▃▄▅▆▇█"


@contextmanager
def view(console: Console, config: Path) -> Iterator[Show]:
    """Yield a function that shows an overview: a terminal is redrawn, other output gets a new copy every five seconds.

    ``config`` is capture's configuration, used in the commands that are printed.
    """
    last_minute = LastMinute()

    def lines(overview: Overview, width: int | None) -> list[str]:
        arguments = ("--config", str(config))
        status = overview_lines(overview, judge(overview, Limits()), width=width, config_arguments=arguments)
        return ["", *status, "", *last_minute.lines()]

    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:

            def draw(overview: Overview) -> None:
                last_minute.add(overview.slot.value)
                live.update(Text("\n".join(lines(overview, console.width))), refresh=True)

            yield draw
    else:
        shown_at_ms = -_MS_BETWEEN_BLOCKS

        def print_block(overview: Overview) -> None:
            nonlocal shown_at_ms
            last_minute.add(overview.slot.value)
            if overview.at_ms - shown_at_ms >= _MS_BETWEEN_BLOCKS:
                shown_at_ms = overview.at_ms
                # Plain text: no wrapping, no colours.
                console.out("\n".join(lines(overview, None)), highlight=False)

        yield print_block


class LastMinute:
    """The slot in the last sixty readings, one per second."""

    def __init__(self) -> None:
        self._slots: deque[SlotStatus] = deque(maxlen=_LOOKS)

    def add(self, slot: SlotStatus | None) -> None:
        """Add a reading; ``None``, if the slot was not found, is ignored."""
        if slot is not None:
            self._slots.append(slot)

    def lines(self) -> list[str]:
        """Show the retained WAL and the workload's rate; no lines before the second reading."""
        if len(self._slots) < 2:
            return []
        first, last = self._slots[0], self._slots[-1]
        retained = [slot.retained_bytes for slot in self._slots]
        bytes_per_s = (last.written_lsn - first.written_lsn) * 1_000 // max(1, last.at_ms - first.at_ms)
        return [
            f"retained WAL in the last minute: {bars(retained)}  at most {bytes_text(max(retained))}",
            f"the workload writes {bytes_text(bytes_per_s)} of WAL each second",
        ]


def bars(values: list[int]) -> str:
    """One character for each value, its height in proportion to the greatest.

    >>> bars([0, 1, 4, 8, 2])
    '▁▂▅█▃'
    """
    top = max(values, default=0) or 1
    return "".join(_BARS[round(max(0, value) / top * (len(_BARS) - 1))] for value in values)
