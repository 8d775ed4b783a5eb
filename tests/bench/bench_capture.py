"""What a change costs the whole capture process, from the socket to the broker's confirmation.

``python -m tests.bench.bench_capture [LOAD …] [--size N] [--rounds N]`` starts a PostgreSQL server and a broker, writes
each load once, and lets a new ``flushtracker capture`` catch up with it in every round. The figures are CPU time of the
process and of all its threads, without its start, so a rate holds for one core even while the others are busy.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from flushtracker.events.stream_events import FragmentEvent
from flushtracker.kafka.topic_reader import TopicFollower
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from tests.bench.measure import Table, per_second
from tests.support.capture_rig import CaptureRig, shape

_DEADLINE_S = 3600.0
_QUIET_S = 0.5
TABLES = (
    "CREATE TABLE users (id bigint PRIMARY KEY, region text, name text, email text, score int)",
    "CREATE TABLE others (id bigint PRIMARY KEY)",
    "CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))",
    "CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84))",
    "CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88))",
    "CREATE TABLE history (id serial PRIMARY KEY, tid int, bid int, aid int, delta int, mtime timestamp, f char(22))",
    "INSERT INTO accounts SELECT g, g / 1000, 0, '' FROM generate_series(0, 9999) g",
    "INSERT INTO tellers SELECT g, g / 10, 0, '' FROM generate_series(0, 99) g",
    "INSERT INTO branches SELECT g, 0, '' FROM generate_series(0, 9) g",
)
_ROWS = """
INSERT INTO users SELECT g, 'eu', 'name of ' || g, g || '@example.com', g % 100 FROM generate_series(1, {size}) g
"""
# TPC-B, as pgbench runs it: three updates and an insert in each transaction.
_TPC_B = """
DO $$ BEGIN FOR n IN 1..{size} LOOP
  UPDATE accounts SET abalance = abalance + n WHERE aid = n * 7919 % 10000;
  UPDATE tellers SET tbalance = tbalance + n WHERE tid = n % 100;
  UPDATE branches SET bbalance = bbalance + n WHERE bid = n % 10;
  INSERT INTO history (tid, bid, aid, delta, mtime) VALUES (n % 100, n % 10, n * 7919 % 10000, n, clock_timestamp());
  COMMIT;
END LOOP; END $$
"""
_OTHER_THREE = [shape(name, f"public.{name}") for name in ("tellers", "branches", "history")]


@dataclass(frozen=True)
class Load:
    """A statement that writes ``{size}`` units of ``changes`` changes, and the shapes on its tables."""

    unit: str
    statement: str
    size: int
    changes: int
    shapes: Sequence[dict[str, Any]]


LOADS = {
    "tpc-b": Load("transactions, 4 shapes", _TPC_B, 20_000, 4, [shape("accounts", "public.accounts"), *_OTHER_THREE]),
    "tpc-b-ranges": Load(
        "transactions, 103 shapes, 100 of them ranges",
        _TPC_B,
        20_000,
        4,
        [
            *(shape(f"a{n}", "public.accounts", where=f"aid BETWEEN {100 * n} AND {100 * n + 99}") for n in range(100)),
            *_OTHER_THREE,
        ],
    ),
    "matching": Load("changes of one transaction, 1 shape", _ROWS, 300_000, 1, [shape("users")]),
    "unwanted": Load("changes of one transaction, no shape", _ROWS, 1_000_000, 1, [shape("others", "public.others")]),
}


@dataclass(frozen=True)
class Cost:
    """The cost of one run of capture; ``main_s`` is the CPU time of the thread that decodes, routes and publishes."""

    cpu_s: float
    main_s: float
    peak_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"one of {', '.join(LOADS)} (default: all)")
    parser.add_argument("--size", type=int, help="how many units of a load are written (default: each load's own)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if unknown := set(arguments.loads) - LOADS.keys():
        parser.error(f"unknown load {', '.join(sorted(unknown))}; choose from {', '.join(LOADS)}")
    header = ["", "units/s", "changes/s", "µs per unit", "of it main thread", "peak MiB", "idle MiB"]
    table = [_row(LOADS[name], arguments.size, arguments.rounds) for name in arguments.loads or LOADS]
    title = f"Capture, the whole process: one core, CPU time, medians of {arguments.rounds} rounds"
    sys.stdout.write(f"{Table(title, header, table)}\n")


def _row(load: Load, size: int | None, rounds: int) -> list[str]:
    size = load.size if size is None else size
    with rig_and_broker() as (rig, _):
        rig.create()
        rig.server.execute(*TABLES)
        rig.define(*load.shapes)
        fragments = TopicFollower(rig.config.kafka, rig.config.kafka.topics.fragments, only_committed=False)
        try:
            idle_lsn = rig.commit_lsn("INSERT INTO others VALUES (1)")
            idle = _median(_catch_up(rig, fragments, idle_lsn) for _ in range(rounds))
            lsn = rig.commit_lsn(load.statement.format(size=size))
            cost = _median(_catch_up(rig, fragments, lsn) for _ in range(rounds))
        finally:
            fragments.close()
    us, main_us = (cost.cpu_s - idle.cpu_s) / size * 1e6, (cost.main_s - idle.main_s) / size * 1e6
    memory = [f"{each.peak_bytes / 2**20:.0f}" for each in (cost, idle)]
    rates = [per_second(us), per_second(us / load.changes)]
    return [f"{size:,} {load.unit}", *rates, f"{us:.1f}", f"{main_us:.1f}", *memory]


@contextmanager
def rig_and_broker() -> Iterator[tuple[CaptureRig, LocalBroker]]:
    """A server and a broker, with capture's intervals as they are by default."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with LocalPostgres(folder / "server") as server, LocalBroker(folder / "broker") as broker:
            rig = CaptureRig(server, broker.bootstrap_servers, folder / "rig", lambda topic: f"{topic}-{uuid.uuid4()}")
            try:
                # Tests check the catalog twenty times a second.
                del rig.settings["capture"]["intervals"]
                yield rig, broker
            finally:
                rig.close()


def _median(costs: Iterator[Cost]) -> Cost:
    runs = list(costs)
    return Cost(*(statistics.median(values) for values in zip(*map(astuple, runs), strict=True)))


def _catch_up(rig: CaptureRig, fragments: TopicFollower, lsn: int) -> Cost:
    """Run a new capture until it has published everything up to ``lsn``; nothing is acked, so each run sends it all."""
    while fragments.values(_QUIET_S):
        pass
    deadline_s = time.monotonic() + _DEADLINE_S
    process = rig.start_process()
    published_lsn = 0
    while published_lsn < lsn - 1:
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit(f"capture did not catch up: {rig.log()[-2000:]}")
        for value in fragments.values(_QUIET_S)[-1:]:
            published_lsn = FragmentEvent.from_json(value).lsn
    ticks = Path(f"/proc/{process.pid}/task/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    main_s = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    process.send_signal(signal.SIGTERM)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(usage.ru_utime + usage.ru_stime, main_s, usage.ru_maxrss * 1024)


if __name__ == "__main__":
    main()
