"""The complete WAL of one source: what was committed, what each shape writes, and how it is sent.

Tests derive events from it. It holds what no single event shows: every operation of every transaction, sent or not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape
from flushtracker.wal.changes import Commit
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.shape_list import listed_at

Event: TypeAlias = FragmentEvent | FlushNotification


@dataclass(frozen=True)
class Txn:
    """A transaction; operation *i* has ``op_offset`` 2·i.

    Each of ``operations`` is a mapping from the shapes that it is routed to, to the ``op_offset`` of the last item that
    the shape writes for it: one more than the operation's own if an update is split in two.

    ``writers`` has the writers of shapes at this time, of those that have another than ``log``.
    """

    lsn: int
    xid: int
    operations: tuple[Mapping[str, int], ...]
    writers: Mapping[str, str] = field(default_factory=dict)

    @property
    def boundary(self) -> LogOffset:
        """The transaction's last offset, if the commit fragment carries its last change."""
        return LogOffset(self.lsn, 2 * (len(self.operations) - 1))

    @cached_property
    def last_written(self) -> dict[str, LogOffset]:
        """The last offset that each shape writes for this transaction."""
        return self._written_by(self.operations)

    @cached_property
    def offsets(self) -> frozenset[LogOffset]:
        """The offsets of the operations."""
        return frozenset(LogOffset(self.lsn, 2 * index) for index in range(len(self.operations)))

    @cached_property
    def written(self) -> list[tuple[LogOffset, str, LogOffset]]:
        """Each operation's offset, a shape that it is routed to, and the offset of the last item written for it."""
        return [
            (LogOffset(self.lsn, 2 * index), shape_id, LogOffset(self.lsn, op))
            for index, operation in enumerate(self.operations)
            for shape_id, op in operation.items()
        ]

    def writer_of(self, shape_id: str) -> str:
        return self.writers.get(shape_id, LOG_WRITER)

    def fragments(
        self, cuts: Iterable[int], follows: LogOffset, *, start: bool, source: str, bare_commit: bool = False
    ) -> list[FragmentEvent]:
        """The transaction's fragments, cut before each operation in ``cuts``.

        ``bare_commit`` adds a commit fragment that carries no change, as a foreign producer may send it.
        """
        edges = sorted({0, len(self.operations), *cuts})
        fragments = []
        for first, end in pairwise(edges):
            last = LogOffset(self.lsn, 2 * (end - 1))
            is_commit = end == len(self.operations) and not bare_commit
            written = self._written_by(self.operations[first:end])
            shapes = self._shapes(written, is_commit=is_commit)
            begins = start and first == 0
            commit = commit_at(self.lsn) if is_commit else None
            fragments.append(
                FragmentEvent(source, self.xid, self.lsn, follows, last, begins, first == 0, commit, shapes)
            )
            follows = last
        if bare_commit:
            last = LogOffset(self.lsn, self.boundary.op_offset + 1)
            bare = replace(fragments[-1], follows=follows, last_log_offset=last, start=False, has_begin=False)
            fragments.append(replace(bare, commit=commit_at(self.lsn), shapes=self._shapes({}, is_commit=True)))
        return fragments

    def split(self, commit: FragmentEvent, cuts: Iterable[int]) -> list[FragmentEvent]:
        """The commit fragment as list parts: its shapes in the list's order, cut before each index in ``cuts``.

        Shapes that are listed at one ``op_offset`` are in one part.
        """
        shapes = sorted(commit.shapes, key=lambda shape: listed_at(shape.shape_id))
        ops = [listed_at(shape.shape_id) for shape in shapes]
        inner = {cut for cut in cuts if 0 < cut < len(shapes) and ops[cut - 1] < ops[cut]}
        parts: list[FragmentEvent] = []
        for first, end in pairwise(sorted({0, len(shapes), *inner})):
            last = LogOffset(self.lsn, ops[end - 1])
            part = replace(commit, last_log_offset=last, shapes=tuple(shapes[first:end]))
            if parts:
                part = replace(part, follows=parts[-1].last_log_offset, start=False, has_begin=False)
            parts.append(part if end == len(shapes) else replace(part, commit=None))
        return parts or [commit]

    def _written_by(self, operations: Iterable[Mapping[str, int]]) -> dict[str, LogOffset]:
        return {shape_id: LogOffset(self.lsn, op) for operation in operations for shape_id, op in operation.items()}

    def _shapes(self, written: Mapping[str, LogOffset], *, is_commit: bool) -> tuple[FragmentShape, ...]:
        """A fragment's shapes; a commit lists those of the whole transaction."""
        listed = self.last_written if is_commit else written
        return tuple(
            FragmentShape(s, written.get(s), 1 if s in written else 0, self.writer_of(s)) for s in sorted(listed)
        )


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A keepalive: the server is idle and has sent everything up to ``lsn``."""

    lsn: int

    def fragment(self, follows: LogOffset, *, start: bool, source: str) -> FragmentEvent:
        last = LogOffset(self.lsn, 0)
        return FragmentEvent(
            source, None, self.lsn, follows, last, start=start, has_begin=True, commit=commit_at(self.lsn)
        )


@dataclass(frozen=True)
class History:
    """The history of one source. ``removals``: shape → the offset after which nothing is routed to it.

    A shape that is resynced gets later transactions again, and may have changed hands.

    ``bare_commits``: the producer sometimes sends a commit fragment that carries no change.
    """

    source: str
    items: tuple[Txn | Keepalive, ...]
    removals: Mapping[str, LogOffset] = field(default_factory=dict)
    bare_commits: bool = False

    @cached_property
    def txns(self) -> list[Txn]:
        return [item for item in self.items if isinstance(item, Txn)]

    @cached_property
    def written_offsets(self) -> dict[str, list[LogOffset]]:
        """What each shape's writer may report as flushed: every item's offset, and the ends of its transactions."""
        offsets: dict[str, list[LogOffset]] = {}
        for txn in self.txns:
            for _, shape_id, last in txn.written:
                offsets.setdefault(shape_id, []).append(last)
            for shape_id, last in txn.last_written.items():
                offsets[shape_id].append(max(last, txn.boundary))
        return offsets

    @cached_property
    def _txn_at(self) -> dict[int, Txn]:
        return {txn.lsn: txn for txn in self.txns}

    def writer_of(self, shape_id: str, offset: LogOffset) -> str:
        """The shape's writer at the time of the transaction at ``offset``."""
        return self._txn_at[offset.tx_offset].writer_of(shape_id)

    def flush(self, shape_id: str, offset: LogOffset) -> FlushNotification:
        """A notification of the shape's own writer."""
        return FlushNotification(self.source, "flushed", shape_id, offset, self.writer_of(shape_id, offset))

    def removal(self, shape_id: str) -> FlushNotification:
        """The notification of the shape's removal, for the writer that it had."""
        offset = self.removals[shape_id]
        return FlushNotification(self.source, "removed", shape_id, offset, self.writer_of(shape_id, offset))

    def last_flushes(self) -> list[FlushNotification]:
        """The notifications that leave nothing pending: each shape's removal, and its last flush after that."""
        return [
            *map(self.removal, self.removals),
            *(
                self.flush(shape_id, max(offsets))
                for shape_id, offsets in self.written_offsets.items()
                if not self.is_removed(shape_id, max(offsets))
            ),
        ]

    def is_removed(self, shape_id: str, offset: LogOffset) -> bool:
        """Whether the shape's removal completes what it has at the offset."""
        removed_at = self.removals.get(shape_id)
        return removed_at is not None and offset.tx_offset <= removed_at.tx_offset


def commit_at(lsn: int) -> Commit:
    return Commit("2026-11-21T01:02:03.456789Z", lsn + 24)


def last_sent(stream: Sequence[FragmentEvent]) -> LogOffset:
    """The greatest offset in a stream of fragments."""
    return max((fragment.last_log_offset for fragment in stream), default=LogOffset.before_all())
