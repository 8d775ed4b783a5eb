"""The snapshots' job on one table beside ``COPY`` of the same rows: ``python -m tests.bench.bench_snapshot [ROWS]``."""

import argparse
import logging
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Final

from flushtracker.local.postgres import LocalPostgres
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.snapshots.snapshot_loop import SnapshotLoop
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_snapshot")
    parser.add_argument("rows", nargs="?", type=int, default=500_000)
    rows = parser.parse_args().rows
    logging.basicConfig(level=logging.INFO)
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
    print(Table(f"Snapshot of {rows:,} rows", ["", "s", "rows/s", "worker's MB", "MB and files of the log"], lines))
    print(f"driver's max RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


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
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if b"pyspark.daemon" in (path / "cmdline").read_bytes():
                        self.largest = max(self.largest, int((path / "statm").read_text().split()[1]) * 4096)
                except OSError:
                    continue


if __name__ == "__main__":
    main()
