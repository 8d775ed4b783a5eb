"""A long run in parts, each with a seed of its own, on several processes: its arguments, its progress and its end."""

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_PROGRESS_S: Final = 30


@dataclass(slots=True)
class Part:
    """What a part did, by what is counted, and each failure with what reproduces it."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Soak:
    """``play(seed)`` plays the ``part_size`` items (``unit``) from a seed on. A run ends at ``max_failures``."""

    description: str | None
    unit: str
    default_count: int
    part_size: int
    max_failures: int
    play: Callable[[int], Part]

    def main(self) -> int:
        """Run what the command line asks for; returns the exit code, 1 if anything failed."""
        options = self._options()
        count = -(-options.count // self.part_size) * self.part_size
        total, started, shown = Part(), time.monotonic(), time.monotonic()
        # Not forked: the parts are to start from a fresh interpreter, as the one that reproduces a failure does.
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            seeds = range(options.seed, options.seed + count, self.part_size)
            for part in pool.imap_unordered(self.play, seeds):
                total.counts += part.counts
                total.failures += part.failures
                now = time.monotonic()
                if len(total.failures) >= self.max_failures or now - started > options.minutes * 60:
                    break
                if now - shown > _PROGRESS_S:
                    shown = now
                    print(self._progress(total.counts[self.unit], count, now - started), flush=True)  # noqa: T201  a program prints
        took_s = time.monotonic() - started
        counts = ", ".join(f"{number:,} {name}" for name, number in total.counts.items())
        for line in total.failures:
            print(line)  # noqa: T201
        rate = total.counts[self.unit] / took_s
        print(  # noqa: T201
            f"seed {options.seed}, {options.jobs} processes, {took_s:.0f} s, {rate:.0f} {self.unit}/s: {counts}; "
            f"{len(total.failures) or 'nothing'} failed"
        )
        return 1 if total.failures else 0

    def _progress(self, done: int, count: int, elapsed_s: float) -> str:
        rate = done / elapsed_s
        left_min = (count - done) / rate / 60 if rate else float("inf")
        return f"{done:,} of {count:,} {self.unit}, {rate:.0f}/s, {left_min:.0f} min left"

    def _options(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            description=self.description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument(f"--{self.unit}", dest="count", type=int, default=self.default_count)
        parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
        parser.add_argument(
            "--jobs", type=int, default=os.cpu_count() or 1, help="processes; by default, one for each CPU"
        )
        parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
        return parser.parse_args()
