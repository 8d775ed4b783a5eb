"""How many events per second of CPU time Spark turns into rows, with all that its JVM and its workers do for it.

``python -m tests.bench.bench_rows [--events 300000] [--rounds 6]``: half fragments of two shapes, half flush
notifications, from memory to a shuffle by group. The first rounds warm the JVM up.
"""

import argparse
from collections.abc import Iterator

from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.jobs.track.rows import to_rows
from flushtracker.spark.session import start_session
from tests.bench.cpu import cpu_seconds
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
        before = cpu_seconds()
        rows = to_rows(raw, 16).repartition(2, "source", "shape_group")
        rows.write.format("noop").mode("overwrite").save()
        cpu_s = cpu_seconds() - before
        print(f"{cpu_s:.2f} s of CPU time, {arguments.events / cpu_s:,.0f} events/s", flush=True)  # noqa: T201
    spark.stop()


def _events(count: int) -> Iterator[tuple[str, bytes, str]]:
    source = SampleSource("7301234567890123456/1/shapes")
    for number in range(count // 2):
        lsn, shape = 1_000_000 + 500 * number, f"shape-{number % _SHAPES}"
        fragment = source.transaction(lsn, shape, f"shape-{number * 7 % _SHAPES}x")
        yield FRAGMENTS, fragment.to_json().encode(), f"fragments partition 0 Kafka offset {number}"
        yield FLUSHES, source.flushed(shape, lsn).to_json().encode(), f"flushes partition 0 Kafka offset {number}"


if __name__ == "__main__":
    main()
