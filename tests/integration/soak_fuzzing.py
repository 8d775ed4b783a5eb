"""``make soak``: mutated inputs for everything that reads bytes from outside, on all cores, with their time and memory.

``python -m tests.integration.soak_fuzzing [--inputs 10000000] [--minutes M] [--seed N]`` prints how many inputs each
reader had, and each input that broke its contract. Every input is timed, and the memory of every hundredth is measured.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.support.fuzzing import Target, check_memory, check_time, mutated, targets

_PART = 5000
_WEIGHTS = {"pgoutput message": 100, "pgoutput transaction": 10}
_WEIGHT_OF_FILE = 1
_WEIGHT_OF_EVENT = 30
_MOST_FINDINGS = 20


def weight(target: Target) -> int:
    """The share of a reader: files are read in milliseconds, events in microseconds."""
    if target.name in _WEIGHTS:
        return _WEIGHTS[target.name]
    return _WEIGHT_OF_FILE if target.name.endswith((".yaml", "configuration")) else _WEIGHT_OF_EVENT


def try_part(seed: int) -> tuple[Counter[str], list[str]]:
    """The number of inputs by reader, and what was found."""
    rng, tried, findings = Random(seed), Counter[str](), []  # noqa: S311  reproducible inputs
    with tempfile.TemporaryDirectory(prefix="flushtracker-") as folder:
        readers = targets(Path(folder))
        for number, target in enumerate(rng.choices(readers, list(map(weight, readers)), k=_PART)):
            data = mutated(rng, target)
            found = check_time(target, data) if number % 100 else check_memory(target, data)
            tried[target.name] += 1
            if found is not None:
                findings.append(f"seed {seed}: {found}")
    return tried, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    arguments = parser.parse_args()
    started = time.monotonic()
    tried, findings = Counter[str](), list[str]()
    with multiprocessing.get_context("spawn").Pool() as pool:
        parts = range(arguments.seed, arguments.seed + arguments.inputs // _PART)
        for part_tried, part_findings in pool.imap_unordered(try_part, parts):
            tried += part_tried
            findings += part_findings
            if len(findings) >= _MOST_FINDINGS or time.monotonic() - started > arguments.minutes * 60:
                break
    took_s = time.monotonic() - started
    each = ", ".join(f"{count} of {name}" for name, count in sorted(tried.items()))
    print(f"seed {arguments.seed}: {tried.total()} inputs in {took_s:.0f} s: {each}")  # noqa: T201  a program prints
    print("\n".join(findings) or "nothing found")  # noqa: T201
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
