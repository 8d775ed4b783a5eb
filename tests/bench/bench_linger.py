"""What capture's ``linger.ms`` costs and gives, at steady rates of changes.

``python -m tests.bench.bench_linger [--lingers MS …] [--rates N …] [--seconds S] [--rounds N]`` starts a PostgreSQL
server and a broker. In every round, a new ``flushtracker capture`` with each ``linger.ms`` in turn publishes the same
load: 250 transactions per second, each of which changes as many rows as the rate needs. CPU time is that of capture and
of the broker while the load runs. The latency is the time from a transaction's commit until a consumer has its changes.
In parentheses: the ratio to the first ``linger.ms``.
"""

import argparse
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from threading import Thread

from flushtracker.kafka.topic_reader import TopicFollower
from flushtracker.local.broker import LocalBroker
from flushtracker.shape_log.change_columns import read_changes
from tests.bench.bench_capture import TABLES, rig_and_broker
from tests.bench.measure import Table, say
from tests.support.capture_rig import CaptureRig, shape

_TRANSACTIONS_PER_S = 250
_DEADLINE_S = 600.0
_LOAD = """
DO $$ DECLARE began timestamptz := clock_timestamp(); BEGIN FOR n IN 1..{transactions} LOOP
  UPDATE accounts SET abalance = abalance + n WHERE aid >= n % 50 * {rows} AND aid < n % 50 * {rows} + {rows};
  COMMIT;
  PERFORM pg_sleep(extract(epoch FROM began + n * interval '{pause_us} us' - clock_timestamp()));
END LOOP; END $$
"""


@dataclass(frozen=True)
class Run:
    """One run of capture: CPU times, and what the broker has stored, for each change."""

    changes_per_s: float
    cpu_us: float
    broker_us: float
    stored_bytes: float
    p50_ms: float
    p99_ms: float


@dataclass
class _Arrivals:
    """What arrives in the topic of changes, with the latency of each transaction."""

    changes: TopicFollower
    latencies_ms: list[float] = field(default_factory=list)
    marker: str = ""
    """The ``bid`` of the last change of the account 1 that set one."""

    def read(self) -> None:
        for value in self.changes.values(0.05):
            now = datetime.now(timezone.utc)
            event = read_changes(value)
            if event.commit_timestamp is not None:
                self.latencies_ms.append((now - datetime.fromisoformat(event.commit_timestamp)).total_seconds() * 1e3)
            _, _, _, _, values, _ = event.items.columns
            if values and values[0] is not None and '"bid":"-' in values[0]:
                self.marker = values[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lingers", type=int, nargs="+", default=[20, 5])
    parser.add_argument("--rates", type=int, nargs="+", default=[1_000, 20_000])
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    header = ["linger.ms", "changes/s", "capture: µs a change", "broker: µs", "stored bytes", "p50 ms", "p99 ms"]
    for rate in arguments.rates:
        found = _measure(arguments.lingers, rate, arguments.seconds, arguments.rounds)
        title = f"Capture at {rate:,} changes/s, medians of {arguments.rounds} rounds of {arguments.seconds} s"
        sys.stdout.write(f"{Table(title, header, list(_rows(found)))}\n")


def _rows(found: dict[int, list[Run]]) -> Iterator[list[str]]:
    medians = {
        linger: Run(*(statistics.median(each) for each in zip(*map(astuple, runs), strict=True)))
        for linger, runs in found.items()
    }
    first = next(iter(medians.values()))
    for linger, run in medians.items():
        costs = [
            f"{run.cpu_us:.0f} ({run.cpu_us / first.cpu_us:.2f})",
            f"{run.broker_us:.0f} ({run.broker_us / first.broker_us:.2f})",
            f"{run.stored_bytes:.0f} ({run.stored_bytes / first.stored_bytes:.2f})",
        ]
        yield [f"{linger}", f"{run.changes_per_s:,.0f}", *costs, f"{run.p50_ms:.1f}", f"{run.p99_ms:.1f}"]


def _measure(lingers: Sequence[int], rate: int, seconds: int, rounds: int) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {linger: [] for linger in lingers}
    with rig_and_broker() as (rig, broker):
        rig.create()
        rig.server.execute("SELECT pg_drop_replication_slot('shapes')", *TABLES)
        rig.define(shape("accounts", "public.accounts"))
        changes = TopicFollower(rig.config.kafka, rig.config.kafka.topics.shape_changes, only_committed=False)
        try:
            for number in range(rounds):
                # Another one is the first of each round.
                for linger in [*lingers[number % len(lingers) :], *lingers[: number % len(lingers)]]:
                    found[linger].append(_run(rig, broker, _Arrivals(changes), linger, rate, seconds))
                    say(f"linger.ms {linger}: {found[linger][-1]}")
        finally:
            changes.close()
    return found


def _run(rig: CaptureRig, broker: LocalBroker, arrivals: _Arrivals, linger: int, rate: int, seconds: int) -> Run:
    """Capture the load over a new slot, so that nothing of the runs before is sent."""
    slot = f"s{time.monotonic_ns()}"
    rig.settings["capture"]["slot"] = slot
    rig.settings["kafka"]["options"] = {"linger.ms": str(linger)}
    rig.server.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    process = rig.start_process()
    pids, data = (process.pid, _pid_of(broker)), broker._folder / "data"
    _mark(rig, arrivals)
    arrivals.latencies_ms.clear()
    transactions, rows = _TRANSACTIONS_PER_S * seconds, rate // _TRANSACTIONS_PER_S
    load = _LOAD.format(transactions=transactions, rows=rows, pause_us=1_000_000 // _TRANSACTIONS_PER_S)
    cpu_before, stored_before, began = [_cpu_s(pid) for pid in pids], _stored_bytes(data), time.monotonic()
    writer = Thread(target=rig.server.execute, args=(load,))
    writer.start()
    while writer.is_alive():
        arrivals.read()
    _mark(rig, arrivals)
    taken_s = time.monotonic() - began
    cpu_s = [_cpu_s(pid) - before for pid, before in zip(pids, cpu_before, strict=True)]
    stored = _stored_bytes(data) - stored_before
    process.send_signal(signal.SIGTERM)
    process.wait(_DEADLINE_S)
    rig.server.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    percentiles = statistics.quantiles(arrivals.latencies_ms, n=100)
    changes, (cpu_us, broker_us) = transactions * rows, (each * 1e6 for each in cpu_s)
    costs = cpu_us / changes, broker_us / changes, stored / changes
    return Run(changes / taken_s, *costs, percentiles[49], percentiles[98])


def _mark(rig: CaptureRig, arrivals: _Arrivals) -> None:
    """Wait until everything so far has arrived."""
    number, deadline_s = -(time.monotonic_ns() % 1_000_000_000 + 1), time.monotonic() + _DEADLINE_S
    rig.server.execute(f"UPDATE accounts SET bid = {number} WHERE aid = 1")  # noqa: S608  a number
    while f'"bid":"{number}"' not in arrivals.marker:
        arrivals.read()
        if time.monotonic() > deadline_s:
            raise SystemExit(f"capture did not publish everything: {rig.log()[-2000:]}")


def _pid_of(broker: LocalBroker) -> int:
    if broker._process is None:
        raise SystemExit("the broker is not running")
    return broker._process.pid


def _cpu_s(pid: int) -> float:
    """The CPU time of a process so far, with all its threads."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")


def _stored_bytes(data: Path) -> int:
    """What the broker's segments have."""
    return sum(path.stat().st_size for path in data.glob("*/*.log"))


if __name__ == "__main__":
    main()
