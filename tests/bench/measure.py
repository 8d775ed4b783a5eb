"""Timing for the benchmarks, and the tables for their results.

Unless a bench says otherwise, times are CPU time: other load on the machine affects them less than wall-clock time.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import process_time


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text; the title states what was measured, and all columns but the first are right-aligned."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_json(self) -> dict[str, object]:
        """The table with the cells as they are printed."""
        return {"title": self.title, "header": [*self.header], "rows": [[*row] for row in self.rows]}

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


def medians(rounds: Iterable[Sequence[float]]) -> list[float]:
    """The median of each column of ``rounds``."""
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def seconds(run: Callable[[], object]) -> float:
    """The CPU time of one run."""
    start = process_time()
    run()
    return process_time() - start


def per_second(microseconds: float) -> str:
    """The rate of operations that take this long, rounded to three significant digits."""
    count = 1e6 / microseconds
    return f"{float(f'{count:.3g}'):,.0f}"


def say(line: str) -> None:
    """Print a line of progress, with the time, beside the tables."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
