"""How many events per second of CPU time Spark turns into rows, with all that its JVM and its workers do for it.

``python -m tests.bench.bench_rows [--events 300000] [--rounds 6]``: half fragments of two shapes, half flush
notifications, from memory to a shuffle by group. The first rounds warm the JVM up.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from flushtracker.spark.rows import FLUSHES, FRAGMENTS, to_rows
from flushtracker.spark.session import start_session
from tests.support.sample_source import SampleSource

_SHAPES = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    spark = start_session("bench", shuffle_partitions=2)
    events = spark.createDataFrame(list(_events(arguments.events)), "stream string, value binary, place string")
    raw = events.repartition(2).cache()
    raw.count()
    for _ in range(arguments.rounds):
        before = _cpu_s()
        rows = to_rows(raw, 16).repartition(2, "source", "shape_group")
        rows.write.format("noop").mode("overwrite").save()
        cpu_s = _cpu_s() - before
        print(f"{cpu_s:.2f} s of CPU time, {arguments.events / cpu_s:,.0f} events/s", flush=True)  # noqa: T201
    spark.stop()


def _events(count: int) -> Iterator[tuple[str, bytes, str]]:
    source = SampleSource("7301234567890123456/1/shapes")
    for number in range(count // 2):
        lsn, shape = 1_000_000 + 500 * number, f"shape-{number % _SHAPES}"
        fragment = source.transaction(lsn, shape, f"shape-{number * 7 % _SHAPES}x")
        yield FRAGMENTS, fragment.to_json().encode(), f"fragments partition 0 Kafka offset {number}"
        yield FLUSHES, source.flushed(shape, lsn).to_json().encode(), f"flushes partition 0 Kafka offset {number}"


def _cpu_s() -> float:
    """The CPU time of this process, the JVM and all workers so far, ended ones included."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, found = 0, [os.getpid()]
    while found:
        pid = found.pop()
        total += ticks.get(pid, 0)
        found += children.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
