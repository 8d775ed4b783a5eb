"""The snapshots' job on one table beside ``COPY`` of the same rows: ``python -m tests.bench.bench_snapshot [ROWS]``.

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

from flushtracker.jobs.snapshot.loop import SnapshotLoop
from flushtracker.local.postgres import LocalPostgres
from flushtracker.process.program import log_to_stderr
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.spark.session import start_session
from tests.bench.measure import Table
from tests.support.snapshot_rig import SnapshotRig

_TABLE: Final = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, status text, amount numeric(12,2), note text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
)
_ROWS: Final = """
INSERT INTO orders SELECT n, n % 1000, (ARRAY['open', 'paid', 'sent'])[1 + n % 3], n * 1.5, 'a note about order ' || n
FROM generate_series(1, {}) n
"""
_POLL_S: Final = 0.05
_PGBENCH_S: Final = 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_snapshot")
    parser.add_argument("rows", nargs="?", type=int, default=500_000)
    parser.add_argument("--pgbench", action="store_true")
    arguments = parser.parse_args()
    rows = arguments.rows
    log_to_stderr()
    spark = start_session("bench", 2)
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalPostgres(folder / "server") as server:
            server.execute(*_TABLE, _ROWS.format(rows), "VACUUM ANALYZE orders", "CHECKPOINT")
            rig = SnapshotRig(server, folder)
            orders = ("public", "orders")
            # The first attempt also pays for what Spark and its workers load.
            rig.define(ShapeDefinition("first", orders, where="id <= 1000"))
            SnapshotLoop(spark, rig.config(), Event(), (), again=False).run()
            rig.define(ShapeDefinition("all", orders))
            (folder / "copy").mkdir()
            (folder / "copy").chmod(0o777)
            copy_s = _seconds(lambda: server.execute(f"COPY orders TO '{folder}/copy/orders'"))
            with _WorkerMemory() as memory:
                job_s = _seconds(SnapshotLoop(spark, rig.config(), Event(), (), again=False).run)
            written = sum(path.stat().st_size for path in Path(rig.log).glob("*.parquet"))
            files = len([*Path(rig.log).glob("*.parquet")])
            if arguments.pgbench:
                server.run("pgbench", *_server(server), "--initialize", "--scale=10", "--quiet")
                alone = _pgbench(server)
                again = SnapshotLoop(spark, rig.config(), Event(), ("all",), again=True)
                thread = threading.Thread(target=again.run)
                thread.start()
                beside = _pgbench(server)
                is_long_enough = thread.is_alive()
                thread.join()
                note = "" if is_long_enough else " (it ended before pgbench: use more rows)"
                sys.stdout.write(f"pgbench: {alone:,.0f} tps alone, {beside:,.0f} tps beside a snapshot{note}\n")
    spark.stop()
    lines = [
        ["COPY TO file", f"{copy_s:.1f}", f"{rows / copy_s:,.0f}", "", ""],
        [
            "snapshot",
            f"{job_s:.1f}",
            f"{rows / job_s:,.0f}",
            f"{memory.largest / 1e6:,.0f}",
            f"{written / 1e6:.0f}, {files}",
        ],
    ]
    title = (
        f"Snapshot of {rows:,} rows; the driver used {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB"
    )
    table = Table(title, ["", "s", "rows/s", "worker's MB", "MB and files of the log"], lines)
    sys.stdout.write(f"{table}\n")


def _server(server: LocalPostgres) -> list[str]:
    options = server.options
    return [f"--host={options['host']}", f"--port={options['port']}", f"--username={options['user']}", "postgres"]


def _pgbench(server: LocalPostgres) -> float:
    """Transactions per second."""
    output = server.run("pgbench", "--client=4", "--jobs=2", f"--time={_PGBENCH_S}", "--no-vacuum", *_server(server))
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


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
