"""``python -m tests.bench [--quick] [--long] [--json FILE] [NAME …]``: run benchmarks, print and keep their tables."""

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tests.bench import (
    beam,
    cluster,
    fan_out,
    idle,
    latency,
    lifetime,
    loop_memory,
    memory,
    on_demand,
    reads,
    serving,
    sink,
    store,
    store_requests,
    throughput,
    tracking,
    writing,
)
from tests.bench.measure import Table

Bench = Callable[..., Iterable[Table]]
BENCHES: Final[Mapping[str, Bench]] = {
    "beam": beam.tables,
    "reads": reads.tables,
    "throughput": throughput.tables,
}
"""On one core, in CPU time, without a JVM."""

JOB_BENCHES: Final[Mapping[str, Bench]] = {
    "tracking": tracking.tables,
    "writing": writing.tables,
}
"""With Spark or PostgreSQL, and Kafka; wall-clock time."""

LONG_BENCHES: Final[Mapping[str, Bench]] = {
    "cluster": cluster.tables,
    "fan_out": fan_out.tables,
    "idle": idle.tables,
    "latency": latency.tables,
    "serving": serving.tables,
    "lifetime": lifetime.tables,
    "loop_memory": loop_memory.tables,
    "memory": memory.tables,
    "on_demand": on_demand.tables,
    "sink": sink.tables,
    "store": store.tables,
    "store_requests": store_requests.tables,
}
"""Benches of more than a few minutes."""

ALL: Final = {**BENCHES, **JOB_BENCHES, **LONG_BENCHES}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Runs the benchmarks, prints tables.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)} (default: the short ones)")
    parser.add_argument("--quick", action="store_true", help="those without Spark, in the smallest sizes: do they run?")
    parser.add_argument("--long", action="store_true", help="the long ones instead of the short ones")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the tables, with the machine and the commit")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - ALL.keys():
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; choose from {', '.join(ALL)}")
    usual = BENCHES if arguments.quick else LONG_BENCHES if arguments.long else {**BENCHES, **JOB_BENCHES}
    machine = _machine()
    sys.stdout.write(f"{', '.join(f'{name} {value}' for name, value in machine.items())}\n")
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.names or usual:
        for table in ALL[name](quick=arguments.quick):
            sys.stdout.write(f"\n{table}\n")
            sys.stdout.flush()
            tables.setdefault(name, []).append(table.to_json())
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"machine": machine, "tables": tables}, indent=1) + "\n")


def _machine() -> dict[str, str]:
    """What the figures depend on."""
    cpu = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in cpu.read_text().splitlines() if "model name" in line]
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return {
        "cores": f"{len(models)} of {models[0]}" if models else platform.machine(),
        "Python": platform.python_version(),
        "pyspark": version("pyspark"),
        "numpy": version("numpy"),
        "commit": done.stdout.strip() or "unknown",
    }


main()
