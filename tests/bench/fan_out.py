"""What a server's hot tail costs: many clients of one shape, writers that have stopped, and shapes nobody asks for.

A process in place of capture and the writers publishes the events of transactions with one change each, and appends
the same to the log every half a second. The server has the first core, everything else is on any. Times are from when
an event is handed to Kafka's client, on this machine's clock.
"""

import asyncio
import http.client
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flushtracker.events.records import record_of
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.local.broker import LocalBroker
from flushtracker.shapes.shape_schema import shape_schema
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.bench.live_clients import LiveClient
from tests.bench.measure import Table, say
from tests.bench.serving import CLIENTS_AT_ONCE, ServerProcess, require_files
from tests.support.sample_registry import shape_entry, table_entry, users_log
from tests.support.shape_log_rows import SOURCE, append, commit, item

_TOPIC: Final = "flushtracker.shape_changes"
_FIRST: Final = 1_000_000
_STEP: Final = 500
_APPEND_S: Final = 0.5
_PROBE_S: Final = 0.05
_CONNECT_S: Final = 120.0
_MOST_MS: Final = 60_000
_MOST: Final = 2_000_000
_HOUR: Final = 900_000
"""The transactions of an hour, of 250 a second."""
_LOADS: Final = ((1_000, 250), (4_000, 60), (10_000, 25))
"""Clients and transactions/s: all are sent about the same number of messages, which is what limits a server."""
_FAST: Final = 5_000
"""As many a second as the server can follow."""
_SCHEMA: Final = shape_schema(shape_entry().definition, table_entry().binding)


def tables(*, quick: bool = False) -> Iterator[Table]:
    """Clients that wait, then the memory, then what is skipped."""
    header = ["clients", "transactions/s", "", "server", "ms p50/p99", "CPU %", "answers/s", "MB/s", "MB resident"]
    header += ["/healthz ms p50/p99", "oldest look s"]
    loads, seconds = ([(50, 250)], 3.0) if quick else (_LOADS, 30.0)
    cases = [(*load, sse, tail) for load in loads for sse in (False, True) for tail in (False, True)]
    lines = [_fan_out(*case, seconds) for case in cases]
    yield Table("the clients of one shape", header, lines)
    header = ["transactions", "MB before", "after", "at most"]
    yield Table("serve with a tail while the writers are stopped", header, [_stopped(20_000 if quick else _HOUR)])
    header = ["records/s of shapes that nobody asks for", "CPU %"]
    yield Table("serve with a tail", header, [_skipped(rate, seconds) for rate in (0, 20_000)])


def _event(number: int, shape_id: str = "users") -> ShapeChangesEvent:
    tx = _FIRST + _STEP * number
    row = {"id": str(number), "price": "19.99", "paid": "t", "day": "2026-01-01", "note": "a note of a usual length"}
    return ShapeChangesEvent(
        *(SOURCE, shape_id),
        xid=number + 1_000,
        follows=LogOffset.last_of(tx - _STEP),
        last_log_offset=LogOffset(tx, 0),
        start=False,
        has_begin=True,
        commit=Commit("2026-01-01T00:00:00.000000Z", 1),
        items=(LogItem(LogOffset(tx, 0), "insert", f'"public"."users"/"{number}"', row),),
        schema=_SCHEMA,
    )


def _rows(number: int) -> list[dict[str, object]]:
    (change,) = _event(number).items
    tx = change.offset.tx_offset
    return [item((tx, 0), "insert", change.key, dict(change.value or {})), commit(tx)]


def publish(servers: str, log: str | None, rate: float, shape_id: str, produced_s: Any, stop: Any) -> None:
    """In a process of its own: publish a transaction after the other, and say when, until ``stop`` or there is no room.

    Without ``log``, no writer runs.
    """
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 5, "compression.type": "zstd", "acks": "all"}
        | {"enable.idempotence": True, "partitioner": "murmur2_random"}
    )
    done, ended = [0], Event()
    writer = Thread(target=_write, args=(log, done, ended))
    writer.start()
    began_s = time.time()
    while not stop.is_set() and done[0] < len(produced_s):
        due = min(int((time.time() - began_s) * rate) + 1, len(produced_s), done[0] + 1_000)
        for number in range(done[0], due):
            record = record_of(_event(number, shape_id))
            while len(producer) > 50_000:
                producer.poll(0.05)
            produced_s[number] = time.time()
            producer.produce(_TOPIC, record.value, record.key)
        done[0] = due
        producer.poll(0)
        time.sleep(max(began_s + due / rate - time.time(), 0))
    producer.flush(60)
    ended.set()
    writer.join()


def _write(log: str | None, done: list[int], ended: Event) -> None:
    written = 0
    while log is not None and not ended.wait(_APPEND_S):
        upto = done[0]
        append(log, [row for number in range(written, upto) for row in _rows(number)])
        written = upto


@dataclass
class _Stage:
    folder: Path
    servers: str
    log: str
    clients: int

    @contextmanager
    def server(self, *, tail: bool) -> Iterator[ServerProcess]:
        server = ServerProcess(self.folder, self.log, self.clients, self.servers if tail else "")
        try:
            yield server
        finally:
            server.stop()

    @contextmanager
    def published(self, rate: float, *, log: bool, count: int = _MOST, shape_id: str = "users") -> Iterator[Any]:
        """Publish during the block, which gets when."""
        context = multiprocessing.get_context("spawn")
        produced_s, stop = context.Array("d", count, lock=False), context.Event()
        arguments = (self.servers, self.log if log else None, rate, shape_id, produced_s, stop)
        publisher = context.Process(target=publish, args=arguments, daemon=True)
        publisher.start()
        try:
            yield produced_s
        finally:
            stop.set()
            publisher.join()


@contextmanager
def _staged(clients: int = 10) -> Iterator[_Stage]:
    require_files(clients)
    with TemporaryDirectory() as name, LocalBroker(Path(name) / "broker") as broker:
        folder = Path(name)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic(_TOPIC, 2, 1)])[_TOPIC].result(60)
        log = users_log(folder)
        # A client is linked to the tail if the log has what the first event follows.
        append(log, _rows(-1))
        yield _Stage(folder, broker.bootstrap_servers, log, clients)


class _Latencies:
    """A histogram in ms over all clients and transactions."""

    def __init__(self, produced_s: Any) -> None:
        self._produced_s = np.frombuffer(produced_s)
        self.counts = np.zeros(_MOST_MS, np.int64)
        self.begun = False
        self.received_bytes = 0

    def client(self, port: int, number: int, *, sse: bool) -> LiveClient:
        reached = [-1]

        def got(body: bytes, at_s: float) -> None:
            self.received_bytes += len(body)
            place = body.rfind(b'"lsn":"')
            if place >= 0:
                last = (int(body[place + 7 :].partition(b'"')[0]) - _FIRST) // _STEP
                if self.begun and reached[0] >= 0:
                    late_ms = 1e3 * (at_s - self._produced_s[reached[0] + 1 : last + 1])
                    np.add.at(self.counts, np.clip(late_ms.astype(np.int64), 0, _MOST_MS - 1), 1)
                reached[0] = last

        # Each has an address of its own range: so many connections need more ports than one address has.
        return LiveClient(port, "shape=users", got, sse=sse, address=f"127.0.{number // 20_000 + 1}.1")

    def cells(self) -> str:
        ends = np.cumsum(self.counts)
        return "/".join(f"{int(np.searchsorted(ends, ends[-1] * part)):,}" for part in (0.5, 0.99))


def _fan_out(count: int, rate: int, sse: bool, tail: bool, seconds: float) -> list[str]:  # noqa: FBT001  a case
    names = [f"{count:,}", f"{rate}", "events" if sse else "polling", "tail" if tail else "plain"]
    say(" ".join(names))
    with _staged(count) as stage, stage.server(tail=tail) as server, stage.published(rate, log=True) as produced_s:
        found = asyncio.run(_followed(server, _Latencies(produced_s), count, sse, seconds))
    say(" ".join(found))
    return [*names, *found]


async def _followed(server: ServerProcess, latencies: _Latencies, count: int, sse: bool, seconds: float) -> list[str]:  # noqa: FBT001
    clients = [latencies.client(server.port, number, sse=sse) for number in range(count)]
    tasks = []
    for number, client in enumerate(clients):
        tasks.append(asyncio.create_task(client.run()))
        if number % CLIENTS_AT_ONCE == 0:
            await asyncio.sleep(0.1)
    deadline_s = time.monotonic() + _CONNECT_S
    while sum(client.answers > 1 for client in clients) < count * 99 // 100:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not all of {count} clients have an answer")
        await asyncio.sleep(0.5)
    await asyncio.sleep(5)
    latencies.begun = True
    before_s, answers, began_s = server.cpu_s, sum(each.answers for each in clients), time.monotonic()
    received = latencies.received_bytes
    context = multiprocessing.get_context("spawn")
    probed = context.Queue()
    probe = context.Process(target=probe_for, args=(server.port, server.status_port, seconds, probed), daemon=True)
    probe.start()
    health_ms, oldest_s = await asyncio.to_thread(probed.get)
    spent_s = time.monotonic() - began_s
    cpu_s, answers = server.cpu_s - before_s, sum(each.answers for each in clients) - answers
    mb_per_s = (latencies.received_bytes - received) / spent_s / 1e6
    resident_mb = server.resident_kb("VmHWM") / 1e3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    refusals = sum(each.refusals for each in clients)
    health = "/".join(f"{each:.0f}" for each in np.quantile(health_ms, [0.5, 0.99]))
    late = latencies.cells() + (f", {refusals} refusals" if refusals else "")
    cpu, rate = f"{100 * cpu_s / spent_s:.0f}", f"{answers / spent_s:,.0f}"
    return [late, cpu, rate, f"{mb_per_s:.0f}", f"{resident_mb:.0f}", health, f"{oldest_s:.1f}"]


def probe_for(port: int, status_port: int, seconds: float, probed: Any) -> None:
    """In a process of its own: how long a health check takes, and how old the last look is at most."""
    end_s, health_ms, oldest_s = time.monotonic() + seconds, [], 0.0
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        _get(port, "/healthz")
        health_ms.append(1e3 * (time.monotonic() - began_s))
        status = json.loads(_get(status_port, "/status.json"))
        oldest_s = max(oldest_s, (status["at_ms"] - (status["looked_at_ms"] or 0)) / 1e3)
        time.sleep(_PROBE_S)
    probed.put((health_ms, oldest_s))


def _get(port: int, path: str) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def _stopped(count: int) -> list[str]:
    say(f"writers stopped for {count:,}")
    with _staged() as stage, stage.server(tail=True) as server:
        return asyncio.run(_followed_without_writers(stage, server, count))


async def _followed_without_writers(stage: _Stage, server: ServerProcess, count: int) -> list[str]:
    reached = [-1]

    def got(body: bytes, _: float) -> None:
        place = body.rfind(b'"lsn":"')
        reached[0] = reached[0] if place < 0 else (int(body[place + 7 :].partition(b'"')[0]) - _FIRST) // _STEP

    task = asyncio.create_task(LiveClient(server.port, "shape=users", got).run())
    await asyncio.sleep(3)
    before_mb = server.resident_kb() / 1e3
    with stage.published(_FAST, log=False, count=count) as produced_s:
        deadline_s = time.monotonic() + 600
        while reached[0] < count - 1:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the client has {reached[0]:,} of {count:,} transactions")
            await asyncio.sleep(0.5)
        say(f"the client had the last one {1e3 * (time.time() - produced_s[count - 1]):.0f} ms later")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    after = (server.resident_kb() / 1e3, server.resident_kb("VmHWM") / 1e3)
    return [f"{count:,}", *(f"{each:.0f}" for each in (before_mb, *after))]


def _skipped(rate: int, seconds: float) -> list[str]:
    with _staged() as stage, stage.server(tail=True) as server:
        return asyncio.run(_idle(stage, server, rate, seconds))


async def _idle(stage: _Stage, server: ServerProcess, rate: int, seconds: float) -> list[str]:
    task = asyncio.create_task(LiveClient(server.port, "shape=users", lambda *_: None).run())
    await asyncio.sleep(3)
    with stage.published(max(rate, 1), log=False, shape_id="orders"):
        await asyncio.sleep(5)
        before_s, before, began_s = server.cpu_s, _records(server), time.monotonic()
        await asyncio.sleep(seconds)
        spent_s = time.monotonic() - began_s
        read, cpu = (_records(server) - before) / spent_s, 100 * (server.cpu_s - before_s) / spent_s
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [f"{read:,.0f}", f"{cpu:.1f}"]


def _records(server: ServerProcess) -> int:
    """Those that the tail has read."""
    return int(json.loads(_get(server.status_port, "/status.json"))["tail"]["records"])
