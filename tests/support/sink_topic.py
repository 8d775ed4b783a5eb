"""``SinkTopic``: a topic whose groups read for themselves, and a plain oracle of what they have read and committed."""

from dataclasses import dataclass, field
from random import Random

from flushtracker.sinks.group_progress import GroupProgress, Span, TopicLook
from flushtracker.wal.log_offset import LogOffset


@dataclass
class PlainReader:
    """A group: a record is read only if it is still there. What it commits may go back, be deleted, or be late."""

    position: dict[int, int]
    committed: dict[int, int] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    """What it had read by the commits that somebody has looked at."""


class SinkTopic:
    """Random histories of one topic: transactions, readers, rebalances, deletions, restarts, and looks at all that.

    A record is its number. The positions between records are those of other records, such as marks of transactions.
    """

    def __init__(self, rng: Random, *, most_marks: int, deletes: bool = False) -> None:
        self._rng, self._most_marks, self._deletes = rng, most_marks, deletes
        self._partitions, first = list(range(rng.randint(1, 3))), rng.randint(0, 5)
        self._records: dict[int, dict[int, int]] = {each: {} for each in self._partitions}
        self._begins, self._ends = dict.fromkeys(self._partitions, first), dict.fromkeys(self._partitions, first)
        self._readers = {name: PlainReader(dict(self._begins)) for name in "abc"[: rng.randint(1, 3)]}
        self._transactions: list[int] = []
        """The transaction of each record."""
        self._last, self._flushed, self._is_over = 0, 0, False
        self._progress = GroupProgress(self._readers, most_marks=most_marks)

    def play(self) -> None:
        for _ in range(self._rng.randint(1, 60)):
            self._live()
            step = self._rng.choice([self._produce, self._look, self._look, self._restart])
            step()
        if not self._deletes:
            self._read_all()

    def _live(self) -> None:
        """What happens beside: readers read and commit, and records are deleted."""
        if self._is_over:
            return
        for reader in self._readers.values():
            if self._rng.random() < 0.5:
                self._read(reader)
        if self._deletes and self._rng.random() < 0.2:
            partition = self._rng.choice(self._partitions)
            self._begins[partition] = self._rng.randint(self._begins[partition], self._ends[partition])

    def _read(self, reader: PlainReader) -> None:
        partition = self._rng.choice(self._partitions)
        here = max(self._begins[partition], reader.position[partition])
        until = self._rng.randint(here, self._ends[partition])
        reader.read |= {number for at, number in self._records[partition].items() if here <= at < until}
        reader.position[partition] = until
        what = self._rng.randrange(6)
        if what == 0:  # A rebalance: the next member begins at what was committed.
            reader.position[partition] = reader.committed.get(partition, self._begins[partition])
        elif what == 1 and partition in reader.committed:
            reader.committed[partition] = self._rng.randint(0, reader.committed[partition])
        elif what == 2:
            reader.committed.pop(partition, None)
        else:
            reader.committed[partition] = until

    def _produce(self) -> None:
        self._last += 1
        spans: dict[int, Span] = {}
        for partition in self._rng.sample(self._partitions, self._rng.randint(0, len(self._partitions))):
            begin = self._ends[partition]
            for position in range(begin, begin + self._rng.randint(1, 3)):
                self._records[partition][position] = len(self._transactions)
                self._transactions.append(self._last)
                self._ends[partition] = position + 1
            spans[partition] = Span(begin, self._ends[partition])
            self._ends[partition] += self._rng.randint(0, 1)
        self._check(self._progress.produce(LogOffset.last_of(self._last), spans))

    def _look(self) -> None:
        committed = {name: dict(reader.committed) for name, reader in self._readers.items()}
        for _ in range(8):  # Each group may take a minute to be asked.
            self._live()
        begins = dict(self._begins)
        self._live()
        ends = dict(self._ends)
        look = TopicLook(begins, committed, ends)
        if not self._is_over and self._rng.random() < 0.2:  # A broker does not know a partition for a moment.
            del self._rng.choice([begins, ends])[self._rng.choice(self._partitions)]
        moved = self._progress.look(look)
        if self._progress.is_covered:
            for name, reader in self._readers.items():
                reader.confirmed |= {
                    number
                    for partition, until in committed[name].items()
                    for position, number in self._records[partition].items()
                    if position < until
                }
        self._check(moved)

    def _restart(self) -> None:
        before = self._progress
        self._progress = GroupProgress(self._readers, before.marks, before.counted, before.ends, self._most_marks)

    def _check(self, moved: LogOffset | None) -> None:
        self._progress.check_invariants()
        if moved is not None:
            assert moved.tx_offset > self._flushed
            self._flushed = moved.tx_offset
        due = {number for number, transaction in enumerate(self._transactions) if transaction <= self._flushed}
        for name, reader in self._readers.items():
            assert due <= reader.read, f"{name} has not read {due - reader.read}"
        if not self._deletes and self._most_marks > self._last:
            assert self._flushed == self._exact()

    def _exact(self) -> int:
        """By definition: the last transaction before the first record that some group has not confirmed."""
        numbers = range(len(self._transactions))
        unconfirmed = [n for n in numbers if any(n not in reader.confirmed for reader in self._readers.values())]
        return self._transactions[unconfirmed[0]] - 1 if unconfirmed else self._last

    def _read_all(self) -> None:
        self._is_over = True
        for reader in self._readers.values():
            reader.read = set(range(len(self._transactions)))
            reader.committed = dict(self._ends)
        self._look()
        assert self._flushed == self._last
        assert self._progress.marks == ()
