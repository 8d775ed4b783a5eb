"""How long a commit takes to clients of a server with a hot tail, and of one without, on the same log.

``python -m tests.bench.bench_tail [--rates N …] [--seconds N]`` runs the parts of ``flushtracker demo`` as
:mod:`tests.bench.bench_loop` sets them up, and a second server. Four connections commit transactions of four changes,
TPC-B's, with ``synchronous_commit=on``. Each server has two clients of ``history``, which has a row of each
transaction: one that polls, and one of server-sent events. A consumer of the topic says when Kafka had an event, and
when it could be consumed. All times are from when the commit has returned, on this machine's clock; all parts share
its cores.

It ends: with the tables, or with an error that says what has not happened in time. The start and the warm-up take two
to three minutes on a machine that does nothing else.
"""

import argparse
import asyncio
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import quantiles
from threading import Event, Thread
from typing import Any, Final

import psycopg
import yaml
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from flushtracker.local.free_ports import free_port
from flushtracker.process.guarded_process import GuardedProcess, child_environment
from flushtracker.trials.demo.demo import Demo, running_demo
from tests.bench import bench_loop
from tests.bench.cpu import cpu_seconds
from tests.bench.live_clients import LiveClient
from tests.bench.measure import Table, say

_CHANGES: Final = 4
_CONNECTIONS: Final = 4
_GRACE_S: Final = 10.0
"""For the last commits to reach all clients."""
_START_S: Final = 60.0
_SHAPE: Final = "history"
_KEY_END: Final = f'"{_SHAPE}"]'.encode()
_ID: Final = re.compile(rb'"id":"(\d+)"')
_TRANSACTION: Final = """
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + 7 WHERE aid = {aid};
UPDATE pgbench_tellers SET tbalance = tbalance + 7 WHERE tid = {tid};
UPDATE pgbench_branches SET bbalance = bbalance + 7 WHERE bid = {bid};
INSERT INTO pgbench_history (id, tid, bid, aid, delta, mtime) VALUES ({id}, {tid}, {bid}, {aid}, 7, now());
COMMIT
"""
Times = dict[int, float]
"""When something happened to the transaction whose row of ``history`` has this id."""


@dataclass
class Run:
    """What has happened to a rate's transactions, by what it is, and what the processes used meanwhile."""

    committed_s: Times = field(default_factory=dict)
    times: dict[str, Times] = field(default_factory=dict)
    cpu_percent: dict[str, float] = field(default_factory=dict)
    resident_mb: dict[str, float] = field(default_factory=dict)

    def cells(self, name: str) -> list[str]:
        found_s = self.times[name]
        late_ms = [1e3 * (found_s[each] - at_s) for each, at_s in self.committed_s.items() if each in found_s]
        missing = len(self.committed_s) - len(late_ms)
        cuts = quantiles(late_ms, n=100) if len(late_ms) > 1 else [float("nan")] * 99
        return [f"{cuts[49]:.0f}/{cuts[98]:.0f}" + (f", {missing} missing" if missing else "")]


def main() -> int:
    """Measure each rate, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_tail", description=__doc__)
    parser.add_argument("--rates", type=int, nargs="+", default=[75, 250, 1_000], help="changes per second")
    parser.add_argument("--seconds", type=int, default=60, help="for each rate (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=60, help="before the first rate, seconds (default: %(default)s)")
    arguments = parser.parse_args()
    runs: dict[int, Run] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # The server runs as another user.
        with _running(Path(folder)) as parts:
            _measure(parts, 1_000, arguments.warm_up)
            for rate in arguments.rates:
                runs[rate] = run = _measure(parts, rate, arguments.seconds)
                say(f"{rate} {' '.join(f'{name} {run.cells(name)[0]}' for name in run.times)}")
                say(f"{rate} {run.cpu_percent} {run.resident_mb}")
    names = [*next(iter(runs.values())).times]
    rows = [
        [*_rates(rate, run, arguments.seconds), *(run.cells(name)[0] for name in names)] for rate, run in runs.items()
    ]
    header = ["changes/s", "transactions/s", *names]
    sys.stdout.write(f"{Table('ms from the return of a commit, p50/p99', header, rows)}\n")
    programs = [*next(iter(runs.values())).cpu_percent]
    rows = [[f"{rate:,}", *(f"{run.cpu_percent[name]:.0f}" for name in programs)] for rate, run in runs.items()]
    sys.stdout.write(f"{Table('CPU, % of a core', ['changes/s', *programs], rows)}\n")
    servers = [*next(iter(runs.values())).resident_mb]
    rows = [[f"{rate:,}", *(f"{run.resident_mb[name]:.0f}" for name in servers)] for rate, run in runs.items()]
    sys.stdout.write(f"{Table('memory, MB resident', ['changes/s', *servers], rows)}\n")
    return 0


def _rates(rate: int, run: Run, seconds: float) -> list[str]:
    return [f"{rate:,}", f"{len(run.committed_s) / seconds:,.0f}"]


@dataclass
class _Parts:
    demo: Demo
    ports: Mapping[str, int]
    pids: Mapping[str, int]
    number: int = 0


@contextmanager
def _running(folder: Path) -> Iterator[_Parts]:
    content = bench_loop.content(folder, bench_loop.SHAPES, bench_loop.SQL)
    with running_demo(folder / "demo", say, content=content) as demo:
        demo.stop_workload()
        bench_loop.wait_for_start(demo, _SHAPE)
        port = free_port()
        with _plain_server(folder / "demo", port) as process:
            _wait_for(f"http://127.0.0.1:{port}/v1/shape?shape={_SHAPE}&offset=now")
            pids = {**demo.pipeline.children.pids, "plain": process.pid}
            pids["tail"] = pids.pop("serve")
            tail = int(demo.shapes_url.rpartition(":")[2].partition("/")[0])
            yield _Parts(demo, {"plain": port, "tail": tail}, pids)


@contextmanager
def _plain_server(folder: Path, port: int) -> Iterator[GuardedProcess]:
    """The demo's server once more, without a tail."""
    config: dict[str, Any] = yaml.safe_load((folder / "flushtracker.yaml").read_text())
    config |= {"status": False, "serve": {"listen": f"127.0.0.1:{port}", "poll": "200 ms"}}
    plain = folder / "plain.yaml"
    plain.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "flushtracker", "serve", "--config", str(plain)]
    process = GuardedProcess("plain", command, log=folder / "plain.log", env=child_environment())
    try:
        yield process
    finally:
        process.stop()


def _wait_for(url: str) -> None:
    deadline_s = time.monotonic() + _START_S
    while not bench_loop.answers(url):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the server has not started in {_START_S:.0f} s")
        time.sleep(0.5)


def _measure(parts: _Parts, rate: int, seconds: float) -> Run:
    run = Run()
    run.times = {"stored": {}, "consumed": {}}
    stop = Event()
    consumer = Thread(target=_consume, args=(parts.demo, stop, run.times["stored"], run.times["consumed"]))
    consumer.start()
    try:
        asyncio.run(_follow(parts, run, rate, seconds))
    finally:
        stop.set()
        consumer.join()
    return run


async def _follow(parts: _Parts, run: Run, rate: int, seconds: float) -> None:
    clients = []
    for sse in (False, True):
        for server, port in parts.ports.items():
            times = run.times[f"{server}, {'events' if sse else 'polling'}"] = {}
            clients.append(LiveClient(port, f"shape={_SHAPE}", _noted(times), sse=sse))
    tasks = [asyncio.create_task(client.run()) for client in clients]
    await asyncio.sleep(3)
    context = multiprocessing.get_context("spawn")
    committed: Any = context.Queue()
    options = parts.demo.config.postgres.connection
    loader = context.Process(target=_commit, args=(dict(options), parts.number, rate / _CHANGES, seconds, committed))
    parts.number += 10_000_000
    loader.start()
    before, began_s = {name: cpu_seconds(pid) for name, pid in parts.pids.items()}, time.monotonic()
    run.committed_s = await asyncio.to_thread(committed.get, timeout=seconds + 120)
    spent_s = time.monotonic() - began_s
    run.cpu_percent = {name: 100 * (cpu_seconds(pid) - before[name]) / spent_s for name, pid in parts.pids.items()}
    run.resident_mb = {server: _resident_mb(parts.pids[server]) for server in parts.ports}
    await asyncio.to_thread(loader.join)
    deadline_s = time.monotonic() + _GRACE_S
    while any(len(times) < len(run.committed_s) for times in run.times.values()) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.1)
    parts.demo.step()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _noted(times: Times) -> Callable[[bytes, float], None]:
    def note(body: bytes, at_s: float) -> None:
        for each in _ID.findall(body):
            times.setdefault(int(each), at_s)

    return note


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1e3


def _consume(demo: Demo, stop: Event, stored_s: Times, consumed_s: Times) -> None:
    """Note when the broker has appended an event, and when it could be consumed."""
    kafka = demo.config.kafka
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "bench"})
    topic = kafka.topics.shape_changes
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in partitions])
    while not stop.is_set():
        message = consumer.poll(0.5)
        if message is None or message.error() or not (message.key() or b"").endswith(_KEY_END):
            continue
        at_s, appended_s = time.time(), message.timestamp()[1] / 1e3
        for each in _ID.findall(message.value() or b""):
            stored_s.setdefault(int(each), appended_s)
            consumed_s.setdefault(int(each), at_s)
    consumer.close()


def _commit(options: Mapping[str, str], first: int, rate: float, seconds: float, committed: Any) -> None:
    """In a process of its own: commit so many transactions a second, and say when each commit had returned."""
    began_s = time.time() + 0.5
    count = int(rate * seconds)

    def work(worker: int) -> Times:
        rng, found = Random(worker), Times()  # noqa: S311  a reproducible load
        with psycopg.connect(**options, autocommit=True) as connection:  # type: ignore[arg-type]  # libpq's names
            connection.execute("SET synchronous_commit = on")
            for number in range(worker, count, _CONNECTIONS):
                time.sleep(max(began_s + number / rate - time.time(), 0))
                key = first + number
                ids = {"aid": rng.randint(1, 1_000_000), "tid": rng.randint(1, 100), "bid": rng.randint(1, 10)}
                connection.pgconn.exec_(_TRANSACTION.format(id=key, **ids).encode())
                found[key] = time.time()
        return found

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        committed.put({key: at_s for part in pool.map(work, range(_CONNECTIONS)) for key, at_s in part.items()})


if __name__ == "__main__":
    sys.exit(main())
