"""``python -m tests.bench [--quick] [NAME …]``: run all benchmarks, or those named, and print their tables."""

import argparse
import platform
import sys
from collections.abc import Callable, Iterable

from tests.bench import beam, routing, shape_log, stalled, throughput
from tests.bench.measure import Table

BENCHES: dict[str, Callable[..., Iterable[Table]]] = {
    "beam": beam.tables,
    "routing": routing.tables,
    "shape_log": shape_log.tables,
    "stalled": stalled.tables,
    "throughput": throughput.tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Runs the benchmarks, prints tables.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="use the smallest sizes, to check that the benchmarks run")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - BENCHES.keys():
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(BENCHES)}")
    python = f"Python {platform.python_version()}"
    sys.stdout.write(f"{python} on {platform.machine()}; one core, CPU time, medians of several rounds\n")
    for name in arguments.names or BENCHES:
        for table in BENCHES[name](quick=arguments.quick):
            sys.stdout.write(f"\n{table}\n")
            sys.stdout.flush()


main()
