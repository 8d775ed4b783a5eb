"""The two writers of a closed loop, one of which uses Kafka transactions."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Producer

from flushtracker.events.stream_events import FlushNotification
from flushtracker.kafka.records import Record, record_of
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_loop_parts import Writers
from tests.support.kafka_job import SILENT

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
        topic: str = self.rig.settings["kafka"]["topics"]["flushes"]
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
