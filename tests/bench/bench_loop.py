"""How long a commit takes through the whole loop: until its rows can be read, and until the slot has confirmed it.

``python -m tests.bench.bench_loop [--rates N …] [--seconds N]`` runs the parts of ``flushtracker demo`` with a workload
of its own, of single-row inserts at each rate in turn, with every flush at once. A rate that the writers do not sustain
has latencies that grow to the end. All parts share this machine's cores.
"""

import argparse
import sys
import tempfile
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread

from flushtracker.delta.shape_log import open_shape_log
from flushtracker.delta.storage import query_rows
from flushtracker.demo import services
from flushtracker.demo.services import Demo
from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.wal.lsn import parse_lsn
from tests.bench.measure import Table

_STEP_S = 0.05
_WARM_UP_S = 20.0
_SHAPES = "shapes:\n  - {id: orders, table: public.orders, snapshot: false}\n"
_INSERT = "INSERT INTO orders (customer, region, status, note) VALUES (7, 'eu', 'open', repeat('x', 60))"
_LAST_COMMITS = """
SELECT tx_offset, commit_timestamp FROM rows WHERE operation = 'commit' AND tx_offset > {after} ORDER BY tx_offset
"""
_CONFIRMED = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shapes'"


class Latencies:
    """Polls the log and the slot; a commit's latencies are those of the first poll that sees it."""

    def __init__(self, log: Path, connection: Connection) -> None:
        self._log = log
        self._connection = connection
        self._last = 0
        self._unconfirmed: list[tuple[int, float]] = []
        self.readable_s: list[float] = []
        self.confirmed_s: list[float] = []

    def poll(self) -> None:
        """Look once."""
        found = query_rows(open_shape_log(str(self._log)), _LAST_COMMITS.format(after=self._last)).to_pylist()
        seen = time.time()
        for row in found:
            committed_at: datetime = row["commit_timestamp"]
            self._last = row["tx_offset"]
            self.readable_s.append(seen - committed_at.timestamp())
            self._unconfirmed.append((row["tx_offset"], committed_at.timestamp()))
        ((text,),) = rows(self._connection, _CONFIRMED)
        seen, confirmed = time.time(), parse_lsn(text)
        self.confirmed_s += [seen - at for lsn, at in self._unconfirmed if lsn < confirmed]
        self._unconfirmed = [(lsn, at) for lsn, at in self._unconfirmed if lsn >= confirmed]


def main() -> int:
    """Measure each rate, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_loop", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000], help="changes per second (default: 1000)")
    parser.add_argument("--seconds", type=int, default=60, help="for each rate (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # The server runs as another user.
        conf = Path(folder) / "conf"
        conf.mkdir()
        for path in services._CONF.glob("*.yaml"):
            text = path.read_text().replace("flush: hold", "flush: batch")
            (conf / path.name).write_text(_SHAPES if path.name == "shapes.yaml" else text)
        services._CONF = conf  # type: ignore[misc]  # final, but for this program
        found: list[list[str]] = []
        with Demo(Path(folder) / "demo", _say) as demo:
            demo.stop_workload()
            for rate in [100, *arguments.rates]:
                seconds = _WARM_UP_S if rate == 100 else arguments.seconds
                figures = _measure(demo, rate, seconds)
                if rate != 100:
                    found.append(figures)
    header = ["changes/s", "written/s", "readable p50", "p99", "confirmed p50", "p99"]
    sys.stdout.write(f"{Table('commit to readable, and to confirmed', header, found)}\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _measure(demo: Demo, rate: int, seconds: float) -> list[str]:
    options = demo.config.postgres.connection
    stop, count = Event(), [0]
    workload = Thread(target=_insert, args=(options, rate, stop, count))
    with closing(connect(options)) as connection:
        while not Path(demo.log).is_dir() or not rows(connection, _CONFIRMED):
            demo.raise_failure()
            time.sleep(1)
        latencies = Latencies(demo.log, connection)
        latencies.poll()
        latencies.readable_s.clear()
        latencies.confirmed_s.clear()
        workload.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            demo.raise_failure()
            latencies.poll()
            time.sleep(_STEP_S)
        stop.set()
        workload.join()
    cells = [f"{rate:,}", f"{count[0] / seconds:,.0f}"]
    for found in (latencies.readable_s, latencies.confirmed_s):
        cuts = quantiles(found, n=100) if len(found) > 1 else [float("nan")] * 99
        cells += [f"{cuts[49]:.2f} s", f"{cuts[98]:.2f} s"]
    _say(" ".join(cells))
    return cells


def _insert(options: dict[str, str], rate: int, stop: Event, count: list[int]) -> None:
    """Insert single rows, each a transaction, ``rate`` in a second as far as the server keeps up."""
    started = time.monotonic()
    with closing(connect({**options, "options": "-c synchronous_commit=off"})) as connection:
        while not stop.is_set():
            due = int((time.monotonic() - started) * rate) - count[0]
            for _ in range(min(due, 100)):
                rows(connection, _INSERT)
                count[0] += 1
            if due < 1:
                time.sleep(0.002)


if __name__ == "__main__":
    sys.exit(main())
