"""The rest of the closed loop around capture: a workload, writers that flush at random, and the tracker's core.

Each takes small steps when the test tells it to, so that the test knows at any moment what was flushed before.
"""

import random
from dataclasses import dataclass, field

from flushtracker.delta.ack_table import AckRow, AckTable
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.records import record_of
from flushtracker.wal.log_offset import LogOffset
from tests.support.capture_rig import CaptureRig, run_in_transaction
from tests.support.in_memory_job import AckTable as AckRows
from tests.support.in_memory_job import InMemoryJob

_STATEMENTS = (
    "INSERT INTO rows (bucket, note) VALUES ({bucket}, 'new')",
    "INSERT INTO rows (bucket, note) SELECT {bucket}, 'many' FROM generate_series(1, 3)",
    "UPDATE rows SET bucket = {bucket}, note = note || '.' WHERE id = {row}",
    "UPDATE rows SET id = nextval('rows_id_seq') WHERE id = {row}",
    "DELETE FROM rows WHERE id = {row}",
    "INSERT INTO unwanted (note) SELECT 'no shape' FROM generate_series(1, {bucket} * 7)",
)


class Workload:
    """Random transactions: small ones, some large, some rolled back, and some rows that no shape wants."""

    def __init__(self, rig: CaptureRig, rng: random.Random) -> None:
        self._rig = rig
        self._rng = rng

    def step(self) -> None:
        rng = self._rng
        statements = []
        for _ in range(rng.randrange(1, 4)):
            statement = rng.choice(_STATEMENTS)
            statements.append(statement.format(bucket=rng.randrange(4), row=rng.randrange(1, 400)))
        if rng.random() < 0.1:
            statements.append("INSERT INTO rows (bucket, note) SELECT 1, 'large' FROM generate_series(1, 25)")
        if rng.random() < 0.1:
            statements.append("ROLLBACK")
        run_in_transaction(self._rig.server, statements)


@dataclass
class Writers:
    """One writer for each shape: what it was sent, and up to where it has said that it is durable."""

    rig: CaptureRig
    rng: random.Random
    publisher: KafkaPublisher
    received: dict[str, LogOffset] = field(default_factory=dict)
    flushed: dict[str, LogOffset] = field(default_factory=dict)

    def step(self, *, chance: float = 0.5) -> None:
        """Read everything that is there, and let some of the writers flush."""
        for part in self.rig.changes():
            if part.items:
                last = part.items[-1].offset
                self.received[part.shape_id] = max(last, self.received.get(part.shape_id, last))
        for shape_id, offset in self.received.items():
            if self.flushed.get(shape_id) != offset and self.rng.random() < chance:
                # Flushed first, and told afterwards: what a writer says is true.
                self.flushed[shape_id] = offset
                event = FlushNotification(self.rig.source_of_fragments(), "flushed", shape_id, offset)
                topic = self.rig.settings["kafka"]["topics"]["flushes"]
                record = record_of(event)
                self.publisher.publish(topic, record.key, record.value)
        self.publisher.flush(30)


class Tracker:
    """The tracker's core over the real topics, its acks in a real table."""

    def __init__(self, rig: CaptureRig) -> None:
        self._rig = rig
        self._rows = AckRows()
        self._job = InMemoryJob(self._rows)
        self._seen: set[bytes] = set()
        self._table = AckTable(str(rig.acks))
        self._table.claim()

    def step(self) -> None:
        """Take what is new as one micro-batch, and write the acks that moved."""
        events: list[FragmentEvent | FlushNotification] = []
        # Flushes first: then no flush is read whose fragment was not there yet, and none is missed for long.
        for role, parse in (("flushes", FlushNotification.from_json), ("fragments", FragmentEvent.from_json)):
            for value in self._rig.values(role):
                if value not in self._seen:
                    self._seen.add(value)
                    events.append(parse(value))
        written = len(self._rows.rows)
        self._job.run_batch(events)
        for source, ack_lsn in self._rows.rows[written:]:
            self._table.append(AckRow(source, 0, ack_lsn, ack_lsn, 0, None, None, self._rig.now()))

    def restart(self, *, lost_checkpoint: bool) -> None:
        """Killed and started again, with its checkpoint or without."""
        self._job = InMemoryJob(self._rows, None if lost_checkpoint else self._job.checkpoint)
        self._seen.clear()


@dataclass
class Sample:
    """Where the slot stood at a moment, and what was flushed before it."""

    confirmed_lsn: int
    flushed: dict[str, LogOffset]


def transactions(parts: list[ShapeChangesEvent]) -> dict[int, dict[str, LogOffset]]:
    """For each commit LSN, the last offset that each shape's writer has to store."""
    owed: dict[int, dict[str, LogOffset]] = {}
    for part in parts:
        if part.items:
            shapes = owed.setdefault(part.last_log_offset.tx_offset, {})
            last = part.items[-1].offset
            shapes[part.shape_id] = max(last, shapes.get(part.shape_id, last))
    return owed
