"""What a Kafka sink takes, and how soon the slot follows the commit of its consumer group.

A server, a broker, and capture and ``flushtracker sink`` as processes, with all intervals as they are by default.

*Changes*: a load is written while both are stopped by a signal. Then capture runs until it has published the load, and
after that ``sink`` until it has written it to its topics; another time both run at once. Rates are wall-clock time from
the signal on, CPU time is that of each process alone.

*A group's commit*: ``flushtracker track`` runs, too. A row is inserted at a random moment, a consumer reads it and
commits, and the bench looks every few milliseconds for what follows.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from random import Random
from statistics import median, quantiles
from typing import Any, Final

from confluent_kafka import Consumer

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.kafka.topic_reader import TopicFollower
from flushtracker.sinks.debezium_records import OFFSET_HEADER
from flushtracker.sinks.stored_feed import POSITIONS_START, read_feed
from flushtracker.tracking.acks.ack_reader import AckReader
from tests.bench.bench_capture import LOADS, TABLES, rig_and_broker
from tests.bench.cpu import cpu_seconds
from tests.bench.measure import Table, medians
from tests.support.capture_rig import CaptureRig, shape

_DEADLINE_S: Final = 600.0
_ROUNDS: Final = 3
_COMMITS: Final = 50
_ROWS: Final = """
INSERT INTO users SELECT g, 'eu', 'name of ' || g, g || '@example.com', g % 100
FROM generate_series((SELECT count(*) + 1 FROM users), (SELECT count(*) + {size} FROM users)) g
"""
_LOADS: Final = {
    "one transaction": (_ROWS, 200_000, 1, ("users",)),
    "TPC-B, four changes each": (LOADS["tpc-b"].statement, 15_000, 4, ("accounts", "tellers", "branches", "history")),
}
"""The statement, how many units of it, the changes of a unit, and the tables, of which the last unit changes each."""


def tables(*, quick: bool = False) -> Iterator[Table]:
    """Two tables; ``quick`` is not for benches with a broker."""
    assert not quick
    header = ["", "schemas", "capture", "sink", "both at once", "capture: µs a change", "sink: µs"]
    rows = [_changes(name, has_schemas=has_schemas) for name in _LOADS for has_schemas in (False, True)]
    yield Table(f"Changes/s to a sink's topic, medians of {_ROUNDS} rounds", header, rows)
    yield Table(f"From a group's commit, {_COMMITS} of them", ["until", "p50", "p90", "max"], list(_latencies()))


class _Sink:
    """The programs, with shapes on ``tables`` in topics of one partition each."""

    def __init__(self, rig: CaptureRig, tables: tuple[str, ...], *, has_schemas: bool) -> None:
        rig.create()
        rig.server.execute(*TABLES)
        kafka = rig.config.kafka
        prefix = rig.settings["kafka"]["topic_prefix"]
        self._rig, self._cursors = rig, dict.fromkeys(tables, 0)
        self.topics = {table: f"{prefix}.public.{table}" for table in tables}
        keys = {"groups": ["store"], "schemas": has_schemas}
        rig.settings["sink"] = {"topics": {table: {"topic": topic, **keys} for table, topic in self.topics.items()}}
        rig.define(*(shape(each, f"public.{each}", writer="kafka", replica="full", snapshot=False) for each in tables))
        self._capture = rig.start_process()
        self._sink = rig.start_process("flushtracker", "sink")
        rig.wait(lambda: rig.log().count("feeding shape") == len(tables), "the shapes", _DEADLINE_S)
        self._fragments = TopicFollower(kafka, kafka.topics.fragments, only_committed=False)
        self._state = TopicFollower(kafka, f"{prefix}.sinks", only_committed=True)
        self.both = (self._capture, self.captured_s), (self._sink, self.fed_s)

    def signal(self, number: signal.Signals) -> None:
        for process, _ in self.both:
            process.send_signal(number)

    def captured_s(self, lsn: int) -> float:
        """How long it takes until capture has published what is before ``lsn``."""
        return self._seconds(lambda: any(FragmentEvent.from_json(v).lsn >= lsn for v in self._fragments.values(1)[-1:]))

    def fed_s(self, lsn: int) -> float:
        """How long it takes until a change of each shape after ``lsn`` is committed to its topic."""

        def is_fed() -> bool:
            for value in self._state.values(1):
                if not value.startswith(POSITIONS_START) and (feed := read_feed(value)).cursor is not None:
                    self._cursors[feed.shape_id] = feed.cursor[0]
            return min(self._cursors.values()) >= lsn

        return self._seconds(is_fed)

    def _seconds(self, condition: Callable[[], bool]) -> float:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > _DEADLINE_S or self._capture.poll() or self._sink.poll():
                raise SystemExit(f"not in time: {self._rig.log()[-2000:]}")
        return time.monotonic() - began

    def close(self) -> None:
        self._fragments.close()
        self._state.close()


def _changes(name: str, *, has_schemas: bool) -> list[str]:
    statement, size, changes, changed = _LOADS[name]
    with rig_and_broker() as (rig, _), closing(_Sink(rig, changed, has_schemas=has_schemas)) as sink:
        rounds = [_round(rig, sink, statement, size) for _ in range(_ROUNDS)]
    *seconds, capture_s, sink_s = medians(rounds)
    rates = [f"{size * changes / each:,.0f}" for each in seconds]
    cpu_us = [f"{each / size / changes * 1e6:.1f}" for each in (capture_s, sink_s)]
    return [name, "yes" if has_schemas else "no", *rates, *cpu_us]


def _round(rig: CaptureRig, sink: _Sink, statement: str, size: int) -> tuple[float, ...]:
    """Seconds of capture, of ``sink`` after it, and of both at once; then the CPU times of the first two."""
    lsn = _write(rig, sink, statement, size)
    found = [_alone(process, wait, lsn) for process, wait in sink.both]
    lsn = _write(rig, sink, statement, size)
    sink.signal(signal.SIGCONT)
    seconds, cpu_s = zip(*found, strict=True)
    return *seconds, sink.fed_s(lsn), *cpu_s


def _alone(process: "subprocess.Popen[bytes]", wait: Callable[[int], float], lsn: int) -> tuple[float, float]:
    """Let a process continue; the seconds that it took, and its CPU time."""
    before = cpu_seconds(process.pid)
    process.send_signal(signal.SIGCONT)
    return wait(lsn), cpu_seconds(process.pid) - before


def _write(rig: CaptureRig, sink: _Sink, statement: str, size: int) -> int:
    """Stop both and write the load; returns an LSN at the begin of its last unit."""
    sink.signal(signal.SIGSTOP)
    lsn = rig.commit_lsn(statement.format(size=size - 1))
    rig.server.execute(statement.format(size=1))
    return lsn


def _latencies() -> Iterator[list[str]]:
    found: list[list[float]] = []
    with rig_and_broker() as (rig, broker), closing(_Sink(rig, ("users",), has_schemas=False)) as sink:
        rig.start_process("flushtracker", "track")
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "store", "enable.auto.commit": False}
        consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
        consumer.subscribe([sink.topics["users"]])
        flushes = TopicFollower(rig.config.kafka, rig.config.kafka.topics.flushes, only_committed=False)
        rng = Random(0)  # noqa: S311  moments
        with closing(consumer), closing(flushes):
            _follow(rig, consumer, flushes)
            for _ in range(_COMMITS):
                time.sleep(2 * rng.random())
                found.append(_follow(rig, consumer, flushes))
    for number, name in enumerate(("sink has notified", "ack is readable", "slot is confirmed")):
        times = [each[number] for each in found]
        cells = (median(times), quantiles(times, n=10)[8], max(times))
        yield [name, *(f"{each:.2f} s" for each in cells)]


def _follow(rig: CaptureRig, consumer: Consumer, flushes: TopicFollower) -> list[float]:
    """Seconds from the commit of a new row's record until it is notified, acknowledged and confirmed."""
    rig.server.execute(_ROWS.format(size=1))
    if (message := consumer.poll(_DEADLINE_S)) is None or message.error() is not None:
        raise SystemExit(f"no record: {rig.log()[-2000:]}")
    headers: dict[str, Any] = dict(message.headers() or [])
    tx_offset = json.loads(headers[OFFSET_HEADER])["tx_offset"]
    acks, source = AckReader(str(rig.acks)), rig.source_of_fragments()
    consumer.commit(asynchronous=False)
    began = time.monotonic()
    checks = (
        lambda: any(FlushNotification.from_json(v).offset.tx_offset >= tx_offset for v in flushes.values(0.005)),
        lambda: (acks.last_ack(source) or 0) >= tx_offset,
        lambda: rig.confirmed_lsn() > tx_offset,
    )
    times: list[float] = []
    while len(times) < len(checks):
        if checks[len(times)]():
            times.append(time.monotonic() - began)
        elif time.monotonic() - began > _DEADLINE_S:
            raise SystemExit(f"not in time: {rig.log()[-2000:]}")
        else:
            time.sleep(0.005)
    return times
