"""What the demo's view shows: where the server, the slot and the acks stand at one moment."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flushtracker.delta.ack_reader import Ack
from flushtracker.report.figures import bytes_text, seconds_text
from flushtracker.wal.lsn import format_lsn

NOTHING: Final = "–"
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Sample:
    """Positions in the WAL at the time ``at``; ``None`` for what is not there yet.

    ``received_lsn`` is how far capture has received it; from ``restart_lsn`` on the slot makes the server keep it.
    """

    at: datetime
    written_lsn: int
    received_lsn: int | None
    confirmed_lsn: int | None
    restart_lsn: int | None
    ack: Ack | None

    @property
    def retained_bytes(self) -> int:
        """How much WAL the slot makes the server keep."""
        return 0 if self.restart_lsn is None else self.written_lsn - self.restart_lsn

    @property
    def ack_lsn(self) -> int | None:
        return None if self.ack is None else self.ack.ack_lsn

    @property
    def blocking(self) -> str:
        """The shape that holds the ack back, and for how long by now."""
        if self.ack is None or self.ack.blocking_shape is None:
            return NOTHING
        if self.ack.blocking_since is None:
            return self.ack.blocking_shape
        seconds = max(0.0, (self.at - self.ack.blocking_since).total_seconds())
        return f"{self.ack.blocking_shape} for {seconds_text(seconds)}"

    def line(self) -> str:
        """All of it, where there is no terminal to draw on."""
        return (
            f"written={lsn_text(self.written_lsn)} received={lsn_text(self.received_lsn)} "
            f"acknowledged={lsn_text(self.ack_lsn)} confirmed_flush_lsn={lsn_text(self.confirmed_lsn)} "
            f"retained={bytes_text(self.retained_bytes)} blocking_shape={self.blocking}"
        )


def lsn_text(lsn: int | None) -> str:
    """As PostgreSQL writes it, or a dash."""
    return NOTHING if lsn is None else format_lsn(lsn)


def bars(values: list[int]) -> str:
    """One character for each value, its height the value's share of the greatest.

    >>> bars([0, 1, 4, 8, 2])
    '▁▂▅█▃'
    """
    top = max(values, default=0) or 1
    return "".join(_BARS[round(max(0, value) / top * (len(_BARS) - 1))] for value in values)
