"""``ShapeFeed``: one shape: its events become records of its topic, and what the groups have read becomes its flushes.

Events are *next*, a *resend* or after a *gap*, as for any writer, by the cursor. An event is **held** if something must
come before it. The reader then reads it again later, from its position in ``shape_changes``:

- until the shape's snapshot is in the topic, all changes are held, because the rows come first;
- a truncate has no key, and nothing orders it among the records of several partitions. So it, and what follows it, is
  held until every group has committed all records before it. The event is then taken up to there: the cursor may lie
  inside.

If a shape's event cannot be taken, because a record would be too large or a value is not readable, the shape is **set
aside**. The event is held until a next process tries again, and all other shapes continue. So is one whose
topic is gone. Its groups are not looked at any more, because what they commit may be of another topic of the same name.

Everything here is a value; the caller publishes the records of :meth:`ShapeFeed.take` and the state after them in one
transaction, after :meth:`ShapeFeed.place`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from flushtracker.errors import NEW_TOPIC, BrokerError, DecodeError, FlushtrackerError, TopicLostError
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import TopicFacts
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.sinks.debezium_records import DebeziumRecords, SinkRecord
from flushtracker.sinks.group_progress import GroupProgress, ProducedMark, Span, TopicLook
from flushtracker.sinks.stored_feed import StoredFeed, StoredMark
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset

_ABSENT_S: Final = 10.0
"""How long a broker may not know a topic, as after its start, before that counts as deleted."""
_TRUNCATES: Final = frozenset({"truncate", "truncate_partition"})


@dataclass(frozen=True, slots=True)
class TakenEvent:
    """What becomes of an event: the records to be published, and whether it is to be read again later."""

    records: list[SinkRecord] = field(default_factory=list)
    is_held: bool = False
    is_gap: bool = False


class ShapeFeed:
    """A feed after what is ``stored``, into ``topic``, which ``groups`` read.

    ``waits_for_snapshot``: the shape has rows from before its changes.
    """

    def __init__(
        self, stored: StoredFeed, groups: tuple[str, ...], topic: TopicFacts, *, waits_for_snapshot: bool
    ) -> None:
        self.source, self.shape_id, self.incarnation = stored.source, stored.shape_id, stored.incarnation
        self.topic, self._topic_id = stored.topic, stored.topic_id or topic.topic_id
        self._old_topics = stored.old_topics
        self.problem: FlushtrackerError | None = None
        """Why it is set aside; ``None`` if it is not."""
        self.cursor = None if stored.cursor is None else LogOffset(*stored.cursor)
        self._contained = None if stored.snapshot is None else ContainedTransactions(*stored.snapshot)
        self._waits_for_snapshot = waits_for_snapshot
        self._is_ordered = topic.partitions == 1
        self._after_truncate = stored.after_truncate
        self._has_open_records = False
        self._absent_since_s: float | None = None
        marks = (
            ProducedMark(LogOffset(*mark.offset), {partition: Span(*span) for partition, span in mark.spans.items()})
            for mark in stored.marks
        )
        self.progress = GroupProgress(groups, marks, stored.counted, stored.ends)
        if self.cursor is not None:
            self.progress.produce(self.cursor, {})

    @property
    def needs_snapshot(self) -> bool:
        return self._waits_for_snapshot and self._contained is None

    @property
    def has_topic(self) -> bool:
        """Whether its topic is the one that was written, as far as is known."""
        return not isinstance(self.problem, TopicLostError) or self.problem.is_there

    @property
    def is_unread(self) -> bool:
        """Whether some group has not committed everything that was produced."""
        return self._has_open_records or bool(self.progress.marks)

    def replaced_topic(self, topic: TopicFacts) -> TopicLostError | None:
        """The error if this is another topic of the same name than the one with the records."""
        if topic.topic_id == self._topic_id:
            return None
        return self._named("it was deleted, and another one was created")

    def take(self, event: ShapeChangesEvent, records: DebeziumRecords, now_ms: int) -> TakenEvent:
        """Take as much of the event as may be published now; it must be of the feed's incarnation.

        Raises:
            DecodeError: as :meth:`DebeziumRecords.of_changes`; nothing of the event is taken.
        """
        before = self.cursor, self._has_open_records, self._after_truncate
        try:
            return self._take(event, records, now_ms)
        except DecodeError:
            self.cursor, self._has_open_records, self._after_truncate = before
            raise

    def _take(self, event: ShapeChangesEvent, records: DebeziumRecords, now_ms: int) -> TakenEvent:
        position = chain_position(event, self.cursor)
        if position != "next":
            return TakenEvent(is_gap=position == "gap")
        if self.needs_snapshot:
            return TakenEvent(is_held=True)
        taken: list[SinkRecord] = []
        if self._contained is None or not self._contained.contains(event.last_log_offset.tx_offset, event.xid):
            for item in new_items(event, self.cursor):
                is_truncate = item.operation in _TRUNCATES
                if not self._is_ordered and (is_truncate or self._after_truncate) and self.is_unread:
                    return TakenEvent(taken, is_held=True)
                taken += records.of_changes(event, item, now_ms)
                self._has_open_records, self._after_truncate = True, is_truncate
                self.cursor = item.offset
        self.cursor = cursor_after(event)
        return TakenEvent(taken)

    def take_snapshot(self, contained: ContainedTransactions) -> None:
        """All rows of the snapshot are published, in the transaction that is now placed."""
        self._contained = contained
        self._has_open_records = True

    def place(self, spans: Mapping[int, Span]) -> None:
        """Note where the records since the last call are, before their transaction is committed.

        Raises:
            TopicLostError: the records are in another topic, or those before are gone.
        """
        self._has_open_records = False
        try:
            self.progress.produce(self.cursor or LogOffset.first(), spans)
        except BrokerError as error:
            raise self._named(error) from error

    def look(self, look: TopicLook, now_s: float) -> LogOffset | None:
        """Count what the groups have committed; returns as :meth:`GroupProgress.look`, and raises as :meth:`place`."""
        try:
            moved = self.progress.look(look)
        except BrokerError as error:
            raise self._named(error) from error
        if self.progress.is_covered:
            self._absent_since_s = None
        elif self._absent_since_s is None:
            self._absent_since_s = now_s
        elif now_s - self._absent_since_s >= _ABSENT_S:
            raise self._named(f"the brokers have not known it for {_ABSENT_S:.0f} s")
        return moved

    def not_answered(self) -> None:
        """Nothing is known of its topic now, so it has not been unknown to the brokers all the time."""
        self._absent_since_s = None

    def _named(self, error: BrokerError | str) -> TopicLostError:
        return TopicLostError(f"topic {self.topic} of shape {self.shape_id!r}: {error}; {NEW_TOPIC}", self.topic)

    def stored(self) -> StoredFeed:
        contained, progress = self._contained, self.progress
        return StoredFeed(
            source=self.source,
            shape_id=self.shape_id,
            incarnation=self.incarnation,
            topic=self.topic,
            topic_id=self._topic_id,
            old_topics=self._old_topics,
            cursor=None if self.cursor is None else (self.cursor.tx_offset, self.cursor.op_offset),
            snapshot=None if contained is None else (contained.lsn, tuple(contained.unseen)),
            after_truncate=self._after_truncate,
            marks=[
                StoredMark(
                    (mark.offset.tx_offset, mark.offset.op_offset),
                    {partition: (span.first, span.end) for partition, span in mark.spans.items()},
                )
                for mark in progress.marks
            ],
            counted={group: dict(counted) for group, counted in progress.counted.items()},
            ends=dict(progress.ends),
        )
