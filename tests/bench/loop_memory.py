"""The memory of all programs over three quarters of an hour of steady load, with 1,000 shapes.

The parts of ``flushtracker demo``, as :mod:`tests.bench.bench_loop` sets them up, and shapes by a condition on a table
of 100,000 rows. pgbench changes ten rows a second, each of one shape, and each a transaction. The memory is the
proportional set size (a page that forked workers share counts once), every ten seconds, of each program's Python, its
JVM, and Spark's Python workers.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final

from flushtracker.trials.demo.demo import Demo, running_demo
from tests.bench import bench_loop
from tests.bench.cpu import descendants, process_name, proportional_mb
from tests.bench.measure import Table, say

_SHAPES: Final = 1_000
_RATE: Final = 10
_SECONDS: Final = 2_700
_START_S: Final = 1_800
"""Other programs may use the machine meanwhile, which hardly changes the memory."""
_SAMPLE_S: Final = 10.0
_PART_S: Final = 300
_SQL: Final = (
    """
    CREATE TABLE accounts (aid int PRIMARY KEY, shape int NOT NULL, balance int NOT NULL, filler char(84));
    ALTER TABLE accounts REPLICA IDENTITY FULL;
    INSERT INTO accounts SELECT i, i % 1000, 0, '' FROM generate_series(1, 100000) i;
    """,
)
_SCRIPT: Final = """\
\\set aid random(1, 100000)
\\set delta random(-5000, 5000)
UPDATE accounts SET balance = balance + :delta WHERE aid = :aid;
"""
Sample = Mapping[tuple[str, str], float]
"""Megabytes by program and part."""


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    shapes = [f"{{id: s{n}, table: public.accounts, where: shape = {n}, snapshot: false}}\n" for n in range(_SHAPES)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # The server runs as another user.
        (folder / "load.sql").write_text(_SCRIPT)
        with running_demo(folder / "demo", say, content=bench_loop.content(folder, shapes, _SQL)) as demo:
            demo.stop_workload()
            bench_loop.wait_for_start(demo, f"s{_SHAPES - 1}", _START_S)
            samples = _run(demo, folder / "load.sql")
    rows = []
    for program, part in sorted({key for _, sample in samples for key in sample}):
        cells = []
        for start in range(0, _SECONDS, _PART_S):
            sizes = [sample.get((program, part), 0.0) for at, sample in samples if start <= at < start + _PART_S]
            cells.append(f"{median(sizes):,.0f} MB")
        rows.append([f"{program}, {part}", *cells])
    header = ["", *(f"{start // 60} to {(start + _PART_S) // 60} min" for start in range(0, _SECONDS, _PART_S))]
    yield Table(f"Memory with {_SHAPES:,} shapes and {_RATE} transactions/s, medians", header, rows)


def _run(demo: Demo, script: Path) -> list[tuple[float, Sample]]:
    samples, start = [], time.monotonic()
    options = ("--client=2", "--no-vacuum", f"--file={script}", f"--rate={_RATE}", f"--time={_SECONDS}")
    with bench_loop.pgbench(demo.config.postgres.connection, *options) as workload:
        while workload.poll() is None:
            demo.step()
            samples.append((time.monotonic() - start, _sample(demo)))
            say(" ".join(f"{program}/{part}={size:.0f}" for (program, part), size in sorted(samples[-1][1].items())))
            time.sleep(_SAMPLE_S)
        if workload.returncode != 0:
            raise OSError(f"pgbench has ended with {workload.returncode}")
    return samples


def _sample(demo: Demo) -> Sample:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for name, top in demo.pipeline.children.pids.items():
        for pid in descendants(top):
            # It may have ended since.
            with suppress(OSError):
                is_jvm = process_name(pid) == "java"
                part = "Python" if pid == top else "JVM" if is_jvm else "workers"
                found[name, part] += proportional_mb(pid)
    return found
