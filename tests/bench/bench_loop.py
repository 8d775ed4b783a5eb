"""How long a commit takes through the whole loop: until its rows can be read, and until it is confirmed.

``python -m tests.bench.bench_loop [--rates N …] [--seconds N]`` runs the parts of ``flushtracker demo`` with pgbench's
TPC-B at each rate in turn, scale 10, four clients, prepared statements, without waiting for the disk; a shape for each
of the four tables, and every flush at once. A transaction has four changes. Rate 0 is as fast as it goes. ``held`` is
the WAL that the slot keeps: the median of the first half, and of the second. A rate that is not sustained has latencies
and WAL that grow to the end. All parts share this machine's cores.

It ends: with the table, whose lines are also printed as they are measured, or with an error that says what has not
happened in time. On a machine that does nothing else, the start and the first warm-up take two to three minutes, and
each rate a minute more than its ``--seconds``; at most it takes ten minutes more.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from urllib.request import urlopen

from flushtracker.delta.storage import query_rows
from flushtracker.local.postgres import packaged_binaries
from flushtracker.postgres.connection import Connection, connect, rows
from flushtracker.shape_log.table.log_table import open_shape_log
from flushtracker.trials.demo.demo import Content, Demo, running_demo
from flushtracker.wal.lsn import parse_lsn
from tests.bench.measure import Table

_STEP_S = 0.1
_START_S = 300.0
_WARM_UPS = 3
_GRACE_S = 60.0
"""For pgbench to end after its time."""
_TABLES = ("accounts", "branches", "history", "tellers")
_CHANGED = (
    ("replication_factor: 1", "partitions: 2\n  replication_factor: 1"),
    ("flush: hold", "flush: batch\n  trigger: 200 ms"),
    # The tracker leaves the writers more of the machine.
    ("track: {", "track: {trigger: 500 ms, "),
    ("allow_origins", "poll: 200 ms\n  allow_origins"),
)
"""In the demo's configuration."""
_ADDED = 'capture: {intervals: {status: "500 ms", acks: "100 ms", keepalive: "2 seconds", shapes: "500 ms"}}\n'
SHAPES = [f"{{id: {table}, table: public.pgbench_{table}, snapshot: false}}\n" for table in _TABLES]
SQL = (
    """
    CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler char(88));
    CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
    CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
    CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
    ALTER TABLE pgbench_history ADD COLUMN id bigserial PRIMARY KEY;
    INSERT INTO pgbench_branches SELECT i, 0 FROM generate_series(1, 10) i;
    INSERT INTO pgbench_tellers SELECT i, (i - 1) / 10 + 1, 0 FROM generate_series(1, 100) i;
    INSERT INTO pgbench_accounts SELECT i, (i - 1) / 100000 + 1, 0, '' FROM generate_series(1, 1000000) i;
    """,
)
"""What ``pgbench -i`` makes, and a key for the table that has none."""

_LAST_COMMITS = """
SELECT DISTINCT tx_offset, commit_timestamp FROM rows WHERE operation = 'commit' AND tx_offset > {after}
ORDER BY tx_offset
"""
_SLOT = """
SELECT confirmed_flush_lsn::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
FROM pg_replication_slots WHERE slot_name = 'flushtracker'
"""


class Latencies:
    """Polls the log and the slot; a commit's latencies are those of the first poll that sees it."""

    def __init__(self, log: Path, connection: Connection, last: int = 0) -> None:
        self._log = open_shape_log(str(log))
        self._connection = connection
        self.last = last
        self._unconfirmed: list[tuple[int, float]] = []
        self.readable_s: list[float] = []
        self.confirmed_s: list[float] = []
        self.held_bytes: list[int] = []

    def poll(self) -> None:
        """Look once."""
        self._log.update_incremental()
        found = query_rows(self._log, _LAST_COMMITS.format(after=self.last)).to_pylist()
        seen = time.time()
        for row in found:
            committed_at: datetime = row["commit_timestamp"]
            self.last = row["tx_offset"]
            self.readable_s.append(seen - committed_at.timestamp())
            self._unconfirmed.append((row["tx_offset"], committed_at.timestamp()))
        ((text, held_bytes),) = rows(self._connection, _SLOT)
        self.held_bytes.append(held_bytes)
        seen, confirmed = time.time(), parse_lsn(text)
        self.confirmed_s += [seen - at for lsn, at in self._unconfirmed if lsn < confirmed]
        self._unconfirmed = [(lsn, at) for lsn, at in self._unconfirmed if lsn >= confirmed]


def main() -> int:
    """Measure each rate, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_loop", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[1000], help="transactions per second (default: 1000)")
    parser.add_argument("--seconds", type=int, default=60, help="for each rate (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=60, help="before each rate, seconds (default: %(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # The server runs as another user.
        found: list[list[str]] = []
        with running_demo(Path(folder) / "demo", _say, content=content(Path(folder), SHAPES, SQL)) as demo:
            demo.stop_workload()
            wait_for_start(demo, "history")
            # Spark's code becomes fast.
            if all("nan s" in _measure(demo, 300, arguments.warm_up) for _ in range(_WARM_UPS)):
                raise TimeoutError(f"no commit was read and confirmed in {_WARM_UPS} warm-ups")
            for rate in arguments.rates:
                _measure(demo, rate or 1_000, arguments.warm_up)
                found.append(_measure(demo, rate, arguments.seconds))
    latencies = [cell for name in ("readable", "confirmed") for cell in (f"{name} p50", "p99")]
    header = ["transactions/s", "reached", *latencies, "held", "held later"]
    sys.stdout.write(f"{Table('commit to readable, and to confirmed', header, found)}\n")
    return 0


def content(folder: Path, shapes: Iterable[str], sql: tuple[str, ...]) -> Content:
    """Other tables and shapes than the demo's, written sooner; the shapes' files are below ``folder``."""
    (folder / "shapes").mkdir()
    for number, shape in enumerate(shapes):
        (folder / "shapes" / f"{number}.yaml").write_text(shape)
    return Content(sql, folder / "shapes", _edited)


def _edited(text: str) -> str:
    for old, new in _CHANGED:
        if old not in text:
            raise ValueError(f"the demo's configuration has no {old}")
        text = text.replace(old, new)
    return f"{text}{_ADDED}"


def wait_for_start(demo: Demo, shape: str, timeout_s: float = _START_S) -> None:
    """Until everything runs, and the HTTP server knows ``shape``."""
    deadline_s = time.monotonic() + timeout_s
    while not (demo.pipeline.has_rows and answers(f"{demo.shapes_url}?shape={shape}&offset=now")):
        demo.step()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not all parts of the demo have started in {timeout_s:.0f} s")
        time.sleep(1)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=30) as answer:  # noqa: S310  our own
            return bool(answer.status == 200)
    except OSError:
        return False


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _measure(demo: Demo, rate: int, seconds: float) -> list[str]:
    options = demo.config.postgres.connection
    with closing(connect(options)) as connection:
        latencies = Latencies(demo.log, connection)
        latencies.poll()
        latencies = Latencies(demo.log, connection, latencies.last)
        limit = [f"--rate={rate}"] if rate else []
        command = ["--client=4", "--protocol=prepared", "--no-vacuum", f"--time={seconds:.0f}", *limit]
        with pgbench(options, *command) as workload:
            deadline_s = time.monotonic() + seconds + _GRACE_S
            while workload.poll() is None:
                demo.step()
                latencies.poll()
                if time.monotonic() > deadline_s:
                    workload.kill()
                    raise TimeoutError(f"pgbench has not ended {_GRACE_S:.0f} s after its {seconds:.0f} s")
                time.sleep(_STEP_S)
            done = re.search(r"actually processed: (\d+)", workload.stdout.read() if workload.stdout else "")
    if done is None:
        raise OSError(f"pgbench has ended with {workload.returncode}, and says nothing of transactions")
    cells = [f"{rate:,}" if rate else "as it goes", f"{int(done[1]) / seconds:,.0f}"]
    for found in (latencies.readable_s, latencies.confirmed_s):
        cuts = quantiles(found, n=100) if len(found) > 1 else [float("nan")] * 99
        cells += [f"{cuts[49]:.2f} s", f"{cuts[98]:.2f} s"]
    half = len(latencies.held_bytes) // 2
    held = (latencies.held_bytes[:half], latencies.held_bytes[half:])
    cells += [f"{median(part or [float('nan')]) / 1e6:.1f} MB" for part in held]
    _say(" ".join(cells))
    return cells


def pgbench(options: Mapping[str, str], *arguments: str) -> "subprocess.Popen[str]":
    """Start it, with these arguments, on the server of ``options``; its output can be read."""
    where = [f"--host={options['host']}", f"--port={options['port']}", f"--username={options['user']}"]
    command = [str(packaged_binaries() / "pgbench"), *where, *arguments, options["dbname"]]
    environ = {**os.environ, "PGOPTIONS": "-c synchronous_commit=off"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


if __name__ == "__main__":
    sys.exit(main())
