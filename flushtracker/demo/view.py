"""The demo's view: a table that is redrawn in a terminal, plain lines elsewhere. Needs ``rich``."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from flushtracker.demo.samples import NOTHING, Sample, bars, lsn_text
from flushtracker.report.figures import bytes_text, seconds_text

Show: TypeAlias = Callable[[Sample], None]

_BARS_SHOWN: Final = 60
_SECONDS_BETWEEN_LINES: Final = 1.0
_SECONDS_BETWEEN_BARS: Final = 1.0


@contextmanager
def view(console: Console) -> Iterator[Show]:
    """Yield a function that shows one sample for each call."""
    if console.is_terminal and not console.is_dumb_terminal:
        history = History()
        with Live(console=console, auto_refresh=False) as live:

            def draw(sample: Sample) -> None:
                history.add(sample)
                live.update(render(history), refresh=True)

            yield draw
    else:
        yield _Lines(console).show


class _Lines:
    """Shows one line a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: datetime | None = None

    def show(self, sample: Sample) -> None:
        if self._last is None or (sample.at - self._last).total_seconds() >= _SECONDS_BETWEEN_LINES:
            self._last = sample.at
            # Plain text: no wrapping, no colours.
            self._console.out(sample.line(), highlight=False)


class History:
    """The samples that the table needs: the first, the last, and the retained bytes of the last minute."""

    def __init__(self) -> None:
        self.first: Sample | None = None
        self.last: Sample | None = None
        self.retained_bytes: deque[int] = deque(maxlen=_BARS_SHOWN)
        self._bar_at: datetime | None = None

    def add(self, sample: Sample) -> None:
        """Add the next sample."""
        self.first = self.first or sample
        self.last = sample
        if self._bar_at is None or (sample.at - self._bar_at).total_seconds() >= _SECONDS_BETWEEN_BARS:
            self._bar_at = sample.at
            self.retained_bytes.append(sample.retained_bytes)


def render(history: History) -> Group:
    """The table and the lines below it; ``history`` has at least one sample."""
    first, last = history.first, history.last
    if first is None or last is None:
        raise ValueError("there is no sample to show")
    seconds = (last.at - first.at).total_seconds()
    written_bytes = last.written_lsn - first.written_lsn
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("WAL")
    table.add_column("LSN", justify="right", no_wrap=True, min_width=10)
    table.add_column("behind", justify="right", no_wrap=True, min_width=8)
    for name, lsn in (
        ("written by the server", last.written_lsn),
        ("received by capture", last.received_lsn),
        ("acknowledged by the tracker", last.ack_lsn),
        ("confirmed_flush_lsn of the slot", last.confirmed_lsn),
        ("restart_lsn: retained from here", last.restart_lsn),
    ):
        behind = NOTHING if lsn is None else bytes_text(max(0, last.written_lsn - lsn))
        table.add_row(name, lsn_text(lsn), behind)
    pending = "the tracker is starting" if last.ack is None else f"{last.ack.pending_shapes} pending at the last ack"
    return Group(
        table,
        "",
        f"blocking shape  [bold]{escape(last.blocking)}[/] ({pending})",
        f"retained WAL    [bold]{bytes_text(last.retained_bytes)}[/], "
        f"at most {bytes_text(max(last.retained_bytes, *history.retained_bytes))} in the last minute",
        f"[cyan]{bars(list(history.retained_bytes))}[/]",
        f"[dim]{bytes_text(written_bytes)} written in {seconds_text(seconds)}; Ctrl-C stops everything[/]",
    )
