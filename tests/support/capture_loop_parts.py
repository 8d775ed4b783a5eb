"""The parts of the closed loop around capture: a workload, writers that flush at random, and the tracker's core.

The test runs each part step by step, so it knows at any moment what has been flushed.
"""

import random
from dataclasses import dataclass, field

from flushtracker.events.records import record_of
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.tracking.acks.ack_table import AckRow, AckTable
from flushtracker.wal.log_offset import LogOffset
from tests.support.ack_rows import AckRows
from tests.support.capture_rig import CaptureRig, run_in_transaction
from tests.support.simulated_job import SimulatedJob

_STATEMENTS = (
    "INSERT INTO rows (bucket, note) VALUES ({bucket}, 'new')",
    "INSERT INTO rows (bucket, note) SELECT {bucket}, 'many' FROM generate_series(1, 3)",
    "UPDATE rows SET bucket = {bucket}, note = note || '.' WHERE id = {row}",
    "UPDATE rows SET id = nextval('rows_id_seq') WHERE id = {row}",
    "DELETE FROM rows WHERE id = {row}",
    "INSERT INTO unwanted (note) SELECT 'no shape' FROM generate_series(1, {bucket} * 7)",
)


class Workload:
    """Random transactions: mostly small, some large, some rolled back, some with rows that match no shape."""

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
    """One writer per shape: the last offset that it received, and the last that it reported as flushed."""

    rig: CaptureRig
    rng: random.Random
    publisher: KafkaPublisher
    received: dict[str, LogOffset] = field(default_factory=dict)
    flushed: dict[str, LogOffset] = field(default_factory=dict)

    def step(self, *, chance: float = 0.5) -> None:
        """Read all changes; each writer with new ones flushes with probability ``chance``."""
        parts = self.rig.changes()
        for part in parts:
            if part.items:
                last = part.items[-1].offset
                self.received[part.shape_id] = max(last, self.received.get(part.shape_id, last))
        for shape_id, offset in self.received.items():
            if self.flushed.get(shape_id) != offset and self.rng.random() < chance:
                # Record the flush before publishing it: a writer never reports a flush that has not happened.
                self.flushed[shape_id] = offset
                # Not the fragments' source: capture may be killed after the changes, before their first fragment.
                (source,) = {part.source for part in parts}
                event = FlushNotification(source, "flushed", shape_id, offset, "log")
                topic = self.rig.topics["flushes"]
                record = record_of(event)
                self.publisher.publish(topic, record.key, record.value)
        self.publisher.flush(30)


class Tracker:
    """The tracker's core: it reads the real topics and writes its acks to a real table."""

    def __init__(self, rig: CaptureRig) -> None:
        self._rig = rig
        self._rows = AckRows()
        self._job = SimulatedJob(self._rows)
        self._seen: set[bytes] = set()
        self._table = AckTable(str(rig.acks))
        self._table.fence_others()

    def step(self) -> None:
        """Process all new events as one micro-batch, and append the acks that advanced."""
        events: list[FragmentEvent | FlushNotification] = []
        # Flushes first: the fragment of every flush read is then in its topic too. The next step reads later flushes.
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
        """Simulate a kill and a restart, with the checkpoint or without."""
        self._job = SimulatedJob(self._rows, None if lost_checkpoint else self._job.checkpoint)
        self._seen.clear()


@dataclass
class Sample:
    """The slot's ``confirmed_flush_lsn`` at one moment, and what had been flushed by then."""

    confirmed_lsn: int
    flushed: dict[str, LogOffset]


def required_flushes(parts: list[ShapeChangesEvent]) -> dict[int, dict[str, LogOffset]]:
    """For each commit LSN, the last offset that each shape's writer must flush."""
    required: dict[int, dict[str, LogOffset]] = {}
    for part in parts:
        if part.items:
            shapes = required.setdefault(part.last_log_offset.tx_offset, {})
            last = part.items[-1].offset
            shapes[part.shape_id] = max(last, shapes.get(part.shape_id, last))
    return required
