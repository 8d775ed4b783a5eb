"""Two writers on one slot, one of them in Kafka's transactions, while the tracking job and capture are killed."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import pytest
from confluent_kafka import Producer

from flushtracker.events.records import Record, record_of
from flushtracker.events.stream_events import FlushNotification
from flushtracker.local.postgres import LocalPostgres
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_loop_parts import Writers
from tests.support.capture_rig import CaptureRig, RigOn
from tests.support.closed_loop import SHAPES, ClosedLoop, prepare
from tests.support.kafka_job import SILENT
from tests.support.killed_job import POINTS
from tests.support.seeds import every
from tests.support.tracking_process import TrackingProcess
from tests.support.waiting import wait_until

_TIMEOUT_S: Final = 60
_FAILS: Final = ("abort", "killed", "open")
"""How a step of a transaction may leave it, other than committed; "open" leaves it to the next step."""


@dataclass
class TwoWriters(Writers):
    """``log`` and ``own``: each notifies all shapes in its name, as a writer that knows of no other does.

    ``flushed`` has what a shape's own writer has stored of it; one that is ``behind`` stores nothing. ``own`` has its
    rows and its notifications in one transaction, which does not commit while it is behind. ``ended`` counts how its
    transactions have ended.
    """

    behind: str | None = None
    ended: Counter[str] = field(default_factory=Counter)
    _source: str = ""
    _writers: dict[str, str] = field(default_factory=dict)
    _told: dict[str, LogOffset] = field(default_factory=dict)
    """What ``log`` has notified."""
    _producer: Producer | None = None
    _open: dict[str, LogOffset] | None = None
    """What the open transaction stores."""

    def step(self, *, chance: float = 0.5) -> None:
        """Read all changes; each writer stores with probability ``chance``, and all its shapes if that is 1."""
        for part in self.rig.changes():
            self._source, self._writers[part.shape_id] = part.source, part.writer
            if part.items:
                last = part.items[-1].offset
                self.received[part.shape_id] = max(last, self.received.get(part.shape_id, last))
        if self.behind != "log" and self.received != self._told and self.rng.random() < chance:
            self._told = dict(self.received)
            self._store("log", self._told)
            for record in self._notifications("log"):
                self.publisher.publish(self._topic, record.key, record.value)
            self.publisher.flush(_TIMEOUT_S)
        if self._open is not None or self.rng.random() < chance:
            self._step_transaction(chance)

    def is_behind(self, writer: str) -> bool:
        """Whether each of its shapes, of which there are some, has changes that it has not stored."""
        shapes = self.shapes_of(writer)
        return bool(shapes) and all(self.received.get(each) != self.flushed.get(each) for each in shapes)

    def shapes_of(self, writer: str) -> list[str]:
        return sorted(shape_id for shape_id, of in self._writers.items() if of == writer)

    def close(self) -> None:
        """Leave no transaction open."""
        if self._open is not None:
            self._begun().abort_transaction(_TIMEOUT_S)

    @property
    def _topic(self) -> str:
        topic: str = self.rig.topics["flushes"]
        return topic

    def _step_transaction(self, chance: float) -> None:
        producer = self._begun()
        if self._open is None:
            producer.begin_transaction()
            self._open = dict(self.received)
            for record in self._notifications("own"):
                producer.produce(self._topic, record.value, record.key)
            assert producer.flush(_TIMEOUT_S) == 0
        commits = self.behind != "own" and self.rng.random() < max(chance, 0.5)
        end = "commit" if commits else self.rng.choice(_FAILS)
        if end == "open":
            return
        self.ended[end] += 1
        if end == "commit":
            # Recorded before it may be read.
            self._store("own", self._open)
            producer.commit_transaction(_TIMEOUT_S)
        elif end == "abort":
            producer.abort_transaction(_TIMEOUT_S)
        else:
            # The next instance aborts what this one leaves.
            self._producer = None
        self._open = None

    def _begun(self) -> Producer:
        if self._producer is None:
            settings = {"bootstrap.servers": self.rig.settings["kafka"]["bootstrap_servers"], "linger.ms": 0}
            self._producer = Producer({**settings, "transactional.id": self._topic}, logger=SILENT)
            self._producer.init_transactions(_TIMEOUT_S)
        return self._producer

    def _store(self, writer: str, offsets: dict[str, LogOffset]) -> None:
        self.flushed |= {each: offsets[each] for each in self.shapes_of(writer) if each in offsets}

    def _notifications(self, writer: str) -> Iterator[Record]:
        for shape_id, offset in self.received.items():
            yield record_of(FlushNotification(self._source, "flushed", shape_id, offset, writer))


_SEED: Final = 1
_PASSES: Final = 2


@pytest.fixture
def loop(postgres: LocalPostgres, rig_on: RigOn) -> Iterator[ClosedLoop[TwoWriters, TrackingProcess]]:
    """The closed loop, in which "others" is of the writer ``own``."""
    rig = rig_on(postgres)
    prepare(rig)
    rig.define(*({**each, "writer": "own" if each["id"] == "others" else "log"} for each in SHAPES))
    loop = ClosedLoop(rig, _SEED, TwoWriters, TrackingProcess)
    with closing(loop.writers), closing(loop.tracker):
        yield loop


@pytest.mark.parametrize(
    ("point", "behind"),
    [
        pytest.param(point, behind, marks=every(18, 5 * number % 18))
        for number, (behind, point) in enumerate(product(["log", "own"], POINTS))
    ],
)
def test_the_slot_waits_for_the_right_writer_under_kills(
    loop: ClosedLoop[TwoWriters, TrackingProcess], point: str, behind: str
) -> None:
    """Each writer notifies the shapes of both, and one is behind; the status names that one.

    The slot never passes what a shape's own writer has not stored, and reaches the end after the kill.
    """
    rig, writers, job = loop.rig, loop.writers, loop.tracker
    capture = rig.start_process()
    writers.behind = behind
    job.start(point, _PASSES)
    loop.run_until(lambda: writers.is_behind(behind), f"changes for {behind}")
    capture = kill(rig, capture)

    def are_named() -> bool:
        loop.step(chance=1.0)
        loop.check_samples()
        # Capture may only now publish the first change of another shape.
        return named(job) == dict.fromkeys(writers.shapes_of(behind), behind)

    wait_until(are_named, f"the shapes of {behind} alone are behind", 240)
    job.arm()
    writers.behind = None
    loop.run_until(lambda: job.is_killed() and writers.ended.keys() == {"commit", "abort", "killed"}, point)
    job.start(point, _PASSES)
    # Each step of the loop needs the processor, too.
    wait_until(job.status, "the job's status", 240)
    loop.finish()
    assert capture.poll() is None, rig.log()
    loop.check()


def named(job: TrackingProcess) -> dict[str, str]:
    """The shapes that hold the slot, by what the job reports; each with its writer."""
    status = job.status()
    holders = () if status is None else [each for source in status.sources for each in source.holders]
    return {each.shape_id: each.writer for each in holders}


def kill(rig: CaptureRig, capture: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Kill capture, and start it again."""
    assert capture.poll() is None, rig.log()
    capture.kill()
    capture.wait()
    return rig.start_process()
