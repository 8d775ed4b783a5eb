"""``LoopTrace``: what a run of the whole loop has decided, batch by batch, judged by what the models prove.

The topics have what capture and the writers have published, in order; Spark's checkpoint has which of these records
each batch of the tracking job has read; and the ack table has what was acknowledged after it. So a run can be retold
exactly, kills included, without anything that the programs log. The names in capitals are those of ``docs/model``:

- every batch's ack is ``Exact``: it confirms each transaction that was known to be flushed, and no other;
- the ack of a source that is caught up is the last commit that was read;
- notifications rise (``NotificationsRise``), also over a restart of the writers;
- what the models assume of capture: a connection's fragments have no gap, and a resend tells the same of each
  transaction.

A violation is an ``AssertionError``, even if nothing was lost by it. Shapes may be removed, but none is added twice.
"""

import bisect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.tracking.acks.ack_reader import Ack
from flushtracker.wal.log_offset import LogOffset
from tests.support.topic_tails import TailRecord, TopicTails


class LoopTrace:
    """Traces one source; call :meth:`poll` at least every few batches, because a checkpoint forgets its oldest.

    ``batches`` have been judged, ``confirming`` of them with an ack that confirmed more than the one before, and
    ``resent`` transactions have been compared with how they were sent before.
    """

    def __init__(self, kafka: KafkaConfig, checkpoint: Path) -> None:
        self._topics = (kafka.topics.fragments, kafka.topics.flushes)
        self._tails = TopicTails(kafka.bootstrap_servers, [*self._topics], kafka.partitions)
        self._checkpoint = checkpoint
        self._waiting: dict[str, list[TailRecord]] = {topic: [] for topic in self._topics}
        self._ends: dict[int, dict[str, dict[str, int]]] = {}
        self._committed = -1
        self._known = Known()
        self._sent = Sent()
        self._ack_lsn = -1
        self.batches = self.confirming = 0

    @property
    def resent(self) -> int:
        return self._sent.resent

    def poll(self) -> None:
        """Read which batches there are; the checkpoint's folder may not exist yet."""
        # Commits first: a batch is planned before it is committed.
        committed = _numbers(self._checkpoint / "commits")
        for number in sorted(_numbers(self._checkpoint / "offsets") - {*self._ends}):
            if ends := self._planned(number):
                self._ends[number] = ends
        self._committed = max([self._committed, *committed])

    def check(self, acks: Sequence[Ack]) -> None:
        """Judge the batches that were committed at the last :meth:`poll`, with all acks that there were after it."""
        for topic, records in self._tails.read_records().items():
            self._waiting[topic] += records
        for number in range(self.batches, self._committed + 1):
            assert number in self._ends, f"batch {number} was committed, and nothing is known of its plan"
            self._check_batch(number, [ack.ack_lsn for ack in acks if ack.batch_id <= number])

    def close(self) -> None:
        self._tails.close()

    def _check_batch(self, number: int, ack_lsns: Iterable[int]) -> None:
        fragments, flushes = (self._taken(topic, number) for topic in self._topics)
        for fragment in map(FragmentEvent.from_json, fragments):
            self._sent.add(fragment)
            self._known.add_fragment(fragment)
        for flush in map(FlushNotification.from_json, flushes):
            self._known.add_flush(flush)
        ack_lsn = max(ack_lsns, default=-1)
        assert ack_lsn >= self._ack_lsn, f"batch {number}: the ack went back from {self._ack_lsn} to {ack_lsn}"
        self._known.check(ack_lsn, f"batch {number}")
        self.batches, self.confirming = number + 1, self.confirming + (ack_lsn > self._ack_lsn)
        self._ack_lsn = ack_lsn

    def _taken(self, topic: str, number: int) -> list[bytes]:
        """Take the records that the batch has read."""
        ends, waiting = self._ends[number][topic], self._waiting[topic]
        taken = [record.value for record in waiting if record.offset < ends[str(record.partition)]]
        self._waiting[topic] = [record for record in waiting if record.offset >= ends[str(record.partition)]]
        return taken

    def _planned(self, number: int) -> dict[str, dict[str, int]] | None:
        """Up to where a batch reads each topic; ``None`` if its plan is being written or was deleted."""
        try:
            lines = (self._checkpoint / "offsets" / str(number)).read_text().splitlines()
            plans = [json.loads(line) for line in lines[2:]]
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        ends = {topic: partitions for plan in plans for topic, partitions in plan.items()}
        return ends if ends.keys() == {*self._topics} else None


@dataclass
class Known:
    """What a tracking job was told so far, in whatever order; every question is answered from its definition.

    ``unsafe`` has each transaction that is not known to be flushed by all of its shapes, with their last offsets.
    """

    unsafe: dict[int, dict[str, LogOffset]] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    """The commit LSNs of transactions, in order."""
    last_lsn: int = -1
    """For a commit or keepalive."""
    flushed: dict[str, LogOffset] = field(default_factory=dict)
    removed: dict[str, LogOffset] = field(default_factory=dict)

    def add_fragment(self, fragment: FragmentEvent) -> None:
        if self.last_lsn < 0:
            # The first one says from where the server sends: all before it is confirmed.
            self.last_lsn = fragment.follows.tx_offset
        if fragment.lsn <= self.last_lsn:
            return
        last = self.unsafe.setdefault(fragment.lsn, {})
        last |= {each.shape_id: each.last_offset for each in fragment.shapes if each.last_offset is not None}
        if fragment.commit is None:
            return
        self.last_lsn = fragment.lsn
        if fragment.xid is not None:
            self.commits.append(fragment.lsn)

    def add_flush(self, event: FlushNotification) -> None:
        if event.type == "removed":
            self.removed[event.shape_id] = event.offset
            return
        before = self.flushed.get(event.shape_id, LogOffset.before_all())
        assert event.offset >= before, f"the notification of {event.shape_id} went back from {before} to {event.offset}"
        self.flushed[event.shape_id] = event.offset

    def check(self, ack_lsn: int, what: str) -> None:
        """The ack confirms all transactions that may be confirmed, and no other; all of a source that is caught up."""
        while self.unsafe and self._is_safe(first := min(self.unsafe)):
            del self.unsafe[first]
        first_unsafe = min(self.unsafe, default=None)
        safe = len(self.commits) if first_unsafe is None else bisect.bisect_left(self.commits, first_unsafe)
        confirmed = bisect.bisect_right(self.commits, ack_lsn)
        assert confirmed == safe, f"{what}: ack {ack_lsn} confirms {confirmed} transactions, but {safe} are safe"
        if first_unsafe is None:
            assert ack_lsn == self.last_lsn, f"{what}: ack {ack_lsn}, but all is flushed up to {self.last_lsn}"

    def _is_safe(self, lsn: int) -> bool:
        # One whose commit is unknown may concern further shapes.
        return lsn <= self.last_lsn and all(self._is_done(*each) for each in self.unsafe[lsn].items())

    def _is_done(self, shape_id: str, last: LogOffset) -> bool:
        removed = self.removed.get(shape_id)
        if removed is not None and last.tx_offset <= removed.tx_offset:
            return True
        return self.flushed.get(shape_id, LogOffset.before_all()) >= last


@dataclass
class Sent:
    """What capture has sent; a transaction that is sent again must concern the same shapes, up to the same offsets."""

    _last: LogOffset | None = None
    _open: dict[str, LogOffset] = field(default_factory=dict)
    _txns: dict[int, dict[str, LogOffset]] = field(default_factory=dict)
    resent: int = 0

    def add(self, fragment: FragmentEvent) -> None:
        is_next = fragment.start or fragment.follows == self._last
        assert is_next, f"{fragment.last_log_offset} follows {fragment.follows}, but {self._last} was sent before it"
        if fragment.has_begin:
            self._open = {}
        self._open |= {each.shape_id: each.last_offset for each in fragment.shapes if each.last_offset is not None}
        self._last = fragment.last_log_offset
        if fragment.commit is None or fragment.xid is None:
            return
        before = self._txns.setdefault(fragment.lsn, self._open)
        assert before == self._open, f"transaction {fragment.lsn} was sent for {before}, and again for {self._open}"
        self.resent += before is not self._open


def _numbers(folder: Path) -> set[int]:
    """The batches that Spark has a file of."""
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit()}
