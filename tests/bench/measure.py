"""Times what a bench runs, and sets out what came of it as a table.

Times are those of the processor, not of the clock: what else runs on the machine disturbs them less.
"""

import statistics
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import process_time


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of text under a title that says what was measured; the first to the left, numbers to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [self.title]
        for row in (self.header, *self.rows):
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  " + "   ".join(cells).rstrip())
        return "\n".join(lines)


def medians_us(runs: Sequence[Callable[[], object]], operations: int, rounds: int = 7) -> list[float]:
    """Microseconds for one of the ``operations`` that each of ``runs`` does at once: medians of so many rounds.

    Each round runs all of them, so that a bad moment is one for all, and their ratios can be trusted.
    """
    times = medians([seconds(run) for run in runs] for _ in range(rounds))
    return [time / operations * 1e6 for time in times]


def medians(rounds: Iterable[Sequence[float]]) -> list[float]:
    """Of each column of ``rounds``."""
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def seconds(run: Callable[[], object]) -> float:
    """The processor's time for one run."""
    start = process_time()
    run()
    return process_time() - start


def kept_bytes(build: Callable[[], object]) -> int:
    """The memory of what ``build`` returns, and of all that it leaves behind elsewhere."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        built = build()
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    del built
    return after - before


def per_second(microseconds: float) -> str:
    """What takes so long, in one second: three digits, the rest rounded away."""
    count = 1e6 / microseconds
    return f"{float(f'{count:.3g}'):,.0f}"
