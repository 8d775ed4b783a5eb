"""``GroupProgress``: how far a shape is durable that consumer groups read from a topic.

The state is a list of **marks**, one for each commit to the topic that is not wholly read. A mark has the shape's
offset up to which everything was produced, and for each partition the **span** of the records since the mark before.
For each group there are the **counted** positions: the greatest that it has committed in each partition. A mark is
flushed once every group has counted past the ends of its spans, and all marks before it are flushed. So a partition
without records holds nothing back, and a mark without records none at all.

A :class:`TopicLook` is a sample of the topic and its groups. A group counts by its greatest position. If it goes back,
after a rebalance or a reset, no flush is taken back: the sink was durable when it committed. A group that was deleted
stays where it was counted, and one that has committed nothing holds the first mark. A position past the end of the
topic does not count, because no reader can have it.

**A commit proves nothing about deleted records.** If a partition begins past a group's next record, retention has
deleted that record. The group's reader continues after it, and its commits there look like progress. So nothing more is
counted in that partition, and the :class:`RecordLoss` is an error. It follows from the state and any later look, so it
needs no state of its own. For that, the beginnings are read *after* the commits, and compared with the positions of the
*previous* look: what was deleted before a commit is then seen with it. A group that passes many records between two
looks, while retention deletes them, is reported as well. A topic that ends before what was produced has lost it, or is
another one of the same name, where a counted position means nothing: that ends all progress.

At most ``most_marks`` are kept: neighbours are merged, by which a shape is flushed later, never earlier.

Invariants: marks, and the spans of a partition are in order and do not overlap; ``flushed`` never goes back, and is
below the first mark.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import BrokerError
from flushtracker.wal.log_offset import LogOffset

MOST_MARKS: Final = 64


@dataclass(frozen=True, slots=True)
class Span:
    """Records of one partition, by their positions: from ``first`` up to ``end``, which is no longer in it."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class ProducedMark:
    """Everything up to ``offset`` is in the topic; ``spans`` are the records since the mark before, by partition."""

    offset: LogOffset
    spans: Mapping[int, Span]


@dataclass(frozen=True, slots=True)
class TopicLook:
    """The first position of each partition, what each group had committed before that, and the end of each after it.

    A broker may not know a partition for a moment, so beginnings and ends may lack it.
    """

    begins: Mapping[int, int]
    committed: Mapping[str, Mapping[int, int]]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True, order=True)
class GroupLag:
    """A group that has records of a partition still to read: from ``position`` up to ``end``."""

    group: str
    partition: int
    position: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class RecordLoss:
    """Records that a group had not read were deleted: those from ``position`` up to ``begin``."""

    group: str
    partition: int
    position: int
    begin: int


class GroupProgress:
    """The progress of ``groups`` in the topic of one shape; the other arguments are what the properties had before.

    Raises:
        ValueError: there is no group, so that nothing would say what is durable.
    """

    def __init__(
        self,
        groups: Iterable[str],
        marks: Iterable[ProducedMark] = (),
        counted: Mapping[str, Mapping[int, int]] | None = None,
        ends: Mapping[int, int] | None = None,
        most_marks: int = MOST_MARKS,
    ) -> None:
        self._counted = {group: dict((counted or {}).get(group, {})) for group in groups}
        if not self._counted:
            raise ValueError("no consumer group is named, so nothing would say what is durable")
        self._marks = list(marks)
        self._ends = dict(ends or {})
        self._most_marks = most_marks
        self._flushed: LogOffset | None = None
        self._losses: tuple[RecordLoss, ...] = ()
        self.is_covered = True
        """Whether the last look had every partition with records."""

    @property
    def flushed(self) -> LogOffset | None:
        """The greatest offset up to which every group has read everything; ``None`` if that is unknown."""
        return self._flushed

    @property
    def losses(self) -> tuple[RecordLoss, ...]:
        """What was lost by the last look."""
        return self._losses

    @property
    def marks(self) -> tuple[ProducedMark, ...]:
        return tuple(self._marks)

    @property
    def counted(self) -> Mapping[str, Mapping[int, int]]:
        return self._counted

    @property
    def ends(self) -> Mapping[int, int]:
        """The position after the last record that was produced, for each partition that has any."""
        return self._ends

    def produce(self, offset: LogOffset, spans: Mapping[int, Span]) -> LogOffset | None:
        """Note that everything up to ``offset`` is in the topic, in these records since the last call.

        Returns what is flushed, if that has moved: at once if there were no records, and none before to be read.

        Raises:
            BrokerError: a record is not behind those before it, so this is not the topic that they are in.
        """
        for partition, span in spans.items():
            if span.first < self._ends.get(partition, 0):
                raise self._lost(partition, span.first)
        self._ends |= {partition: span.end for partition, span in spans.items()}
        mark = ProducedMark(offset, spans)
        if self._marks and (not spans or offset <= self._marks[-1].offset):
            mark = _merged(self._marks.pop(), mark)
        self._marks.append(mark)
        self._thin()
        return self._advance()

    def look(self, look: TopicLook) -> LogOffset | None:
        """Count what the groups have committed; returns what is flushed, if that has moved.

        Nothing is counted if the look lacks a partition: records may have been deleted there.

        Raises:
            BrokerError: the topic ends before what was produced.
        """
        for partition, end in self._ends.items():
            if (now := look.ends.get(partition, end)) < end:
                raise self._lost(partition, now)
        self.is_covered = self._ends.keys() <= look.begins.keys() & look.ends.keys()
        if not self.is_covered:
            return None
        self._losses = tuple(
            RecordLoss(lag.group, lag.partition, lag.position, begin)
            for lag in self.lags()
            if (begin := look.begins[lag.partition]) > lag.position
        )
        lost = {(loss.group, loss.partition) for loss in self._losses}
        for group, counted in self._counted.items():
            for partition, position in look.committed.get(group, {}).items():
                if (group, partition) not in lost and position <= look.ends.get(partition, -1):
                    counted[partition] = max(position, counted.get(partition, 0))
        return self._advance()

    def holders(self) -> set[str]:
        """The groups that have not read all of the first mark."""
        first = self._marks[0].spans if self._marks else {}
        return {
            group
            for group, counted in self._counted.items()
            if any(counted.get(partition, 0) < span.end for partition, span in first.items())
        }

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the state contradicts the head of this module."""
        offsets = [mark.offset for mark in self._marks]
        if offsets != sorted(set(offsets)) or (offsets and self._flushed is not None and offsets[0] <= self._flushed):
            raise AssertionError(f"marks {offsets} are not in order after {self._flushed}")
        if len(self._marks) > self._most_marks:
            raise AssertionError(f"{len(self._marks)} marks are more than {self._most_marks}")
        reached: dict[int, int] = {}
        for mark in self._marks:
            for partition, span in mark.spans.items():
                if not reached.get(partition, 0) <= span.first < span.end <= self._ends[partition]:
                    raise AssertionError(f"{span} of partition {partition} overlaps, or ends after the last one")
                reached[partition] = span.end

    def lags(self) -> Iterator[GroupLag]:
        """For each group and partition with records to be read, the first of them and the end."""
        spans: dict[int, list[Span]] = {}
        for mark in self._marks:
            for partition, span in mark.spans.items():
                spans.setdefault(partition, []).append(span)
        for group, counted in self._counted.items():
            for partition, found in spans.items():
                position, end = counted.get(partition, 0), found[-1].end
                if position < end:
                    first = next(span.first for span in found if span.end > position)
                    yield GroupLag(group, partition, max(position, first), end)

    def _lost(self, partition: int, position: int) -> BrokerError:
        return BrokerError(
            f"partition {partition} was written up to Kafka offset {self._ends[partition]}, but now ends at "
            f"{position}: the topic was deleted or replaced, or has lost records"
        )

    def _advance(self) -> LogOffset | None:
        moved: LogOffset | None = None
        while self._marks and not self.holders():
            moved = self._marks.pop(0).offset
        if moved is not None:
            self._flushed = moved
        return moved

    def _thin(self) -> None:
        """Merge pairs of marks, from the first on; the last one stays, so that what follows has its own."""
        if len(self._marks) > self._most_marks:
            *old, last = self._marks
            pairs = [old[place : place + 2] for place in range(0, len(old), 2)]
            self._marks = [*(_merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs), last]


def _merged(mark: ProducedMark, later: ProducedMark) -> ProducedMark:
    spans = dict(mark.spans)
    for partition, span in later.spans.items():
        spans[partition] = Span(spans[partition].first, span.end) if partition in spans else span
    return ProducedMark(max(mark.offset, later.offset), spans)
