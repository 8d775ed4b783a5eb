"""The snapshots' job on one table beside ``COPY`` of the same rows: ``python -m tests.bench.bench_snapshot [ROWS]``.

One shape with all rows, and ``--shapes`` of them that divide the rows among them, each with a condition of its own.
CPU is that of all processes: server, JVM and Python; other programs on the machine disturb it less than the time.

With ``--pgbench``, also the transactions per second of pgbench's TPC-B with four clients, without a snapshot and while
one is taken, on the same machine.
"""

import argparse
import re
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Final

from flushtracker.local.postgres import LocalPostgres
from flushtracker.process.program import log_to_stderr
from flushtracker.shape_log.snapshot.delta_snapshots import log_snapshots
from flushtracker.shape_log.snapshot.loop import SnapshotLoop
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.spark.session import start_session
from tests.bench.cpu import cpu_seconds
from tests.bench.measure import Table
from tests.support.snapshot_rig import SnapshotRig

TABLE: Final = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, status text, amount numeric(12,2), note text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
)
ROWS: Final = """
INSERT INTO orders
SELECT n, n %% %s, (ARRAY['open', 'paid', 'sent'])[1 + n %% 3], n * 1.5, 'a note about order ' || n
FROM generate_series(1, %s) n
"""
ORDERS: Final = ("public", "orders")
_POLL_S: Final = 0.05
_PGBENCH_S: Final = 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_snapshot")
    parser.add_argument("rows", nargs="?", type=int, default=500_000)
    parser.add_argument("--shapes", type=int, default=2_000)
    parser.add_argument("--pgbench", action="store_true")
    arguments = parser.parse_args()
    rows, shapes = arguments.rows, arguments.shapes
    log_to_stderr()
    spark = start_session("bench", 2)
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalPostgres(folder / "server") as server:
            server.execute(*TABLE, ROWS % (max(1, shapes), rows), "VACUUM ANALYZE orders", "CHECKPOINT")
            rig = SnapshotRig(server, folder)
            # The first attempt also pays for what Spark and its workers load.
            rig.define(ShapeDefinition("first", ORDERS, where="id <= 1000"))
            log_snapshots(spark, rig.config(), Event()).run()
            (folder / "copy").mkdir()
            (folder / "copy").chmod(0o777)
            copy = _Used(lambda: server.execute(f"COPY orders TO '{folder}/copy/orders'"))
            rig.define(ShapeDefinition("all", ORDERS))
            with _WorkerMemory() as memory:
                one = _Used(log_snapshots(spark, rig.config(), Event()).run)
            files = [path.stat().st_size for path in Path(rig.log).glob("*.parquet")]
            many = None
            if shapes:
                rig.define(*(ShapeDefinition(f"s{n}", ORDERS, where=f"customer = {n}") for n in range(shapes)))
                many = _Used(log_snapshots(spark, rig.config(), Event()).run)
            if arguments.pgbench:
                _beside_pgbench(server, log_snapshots(spark, rig.config(), Event(), ("all",), again=True))
    spark.stop()
    lines = [copy.line("COPY TO file", rows), one.line("one shape", rows)]
    lines += [many.line(f"{shapes:,} shapes", rows)] if many else []
    driver_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    title = (
        f"Snapshot of {rows:,} rows; largest worker {memory.largest / 1e6:,.0f} MB, driver {driver_mb:,.0f} MB; "
        f"log of one shape: {sum(files) / 1e6:.0f} MB in {len(files)} files"
    )
    sys.stdout.write(f"{Table(title, ['', 's', 'rows/s', 'CPU s', 'rows/CPU s'], lines)}\n")


def _beside_pgbench(server: LocalPostgres, again: SnapshotLoop) -> None:
    server.run("pgbench", *_server(server), "--initialize", "--scale=10", "--quiet")
    alone = _pgbench(server)
    thread = threading.Thread(target=again.run)
    thread.start()
    beside = _pgbench(server)
    is_long_enough = thread.is_alive()
    thread.join()
    note = "" if is_long_enough else " (it ended before pgbench: use more rows)"
    sys.stdout.write(f"pgbench: {alone:,.0f} tps alone, {beside:,.0f} tps beside a snapshot{note}\n")


class _Used:
    """The time and the CPU time that ``run`` takes."""

    def __init__(self, run: Callable[[], object]) -> None:
        started, cpu = time.perf_counter(), cpu_seconds()
        run()
        self.seconds, self.cpu_s = time.perf_counter() - started, cpu_seconds() - cpu

    def line(self, name: str, rows: int) -> list[str]:
        """A line of the table."""
        figures = f"{self.seconds:.1f}", f"{rows / self.seconds:,.0f}", f"{self.cpu_s:.1f}"
        return [name, *figures, f"{rows / max(self.cpu_s, 0.01):,.0f}"]


def _server(server: LocalPostgres) -> list[str]:
    options = server.options
    return [f"--host={options['host']}", f"--port={options['port']}", f"--username={options['user']}", "postgres"]


def _pgbench(server: LocalPostgres) -> float:
    """Transactions per second."""
    output = server.run("pgbench", "--client=4", "--jobs=2", f"--time={_PGBENCH_S}", "--no-vacuum", *_server(server))
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


class _WorkerMemory:
    """The largest resident memory of any of Spark's Python workers while the block runs."""

    def __init__(self) -> None:
        self.largest = 0
        self._done = Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_WorkerMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_POLL_S):
            self.largest = max([self.largest, *map(_worker_bytes, Path("/proc").glob("[0-9]*"))])


def _worker_bytes(process: Path) -> int:
    """The resident memory of a process, if it is one of Spark's Python workers."""
    try:
        if b"pyspark.daemon" not in (process / "cmdline").read_bytes():
            return 0
        return int((process / "statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:  # it has ended
        return 0


if __name__ == "__main__":
    main()
