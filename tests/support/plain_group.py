"""A shape group by plain definition: lists and tuples, every shape gone through after every batch, nothing packed.

It is what :class:`~flushtracker.tracking.shape_group.ShapeGroup` is compared with, and shares no code with it but the
events and the report. ``random_group_batches`` makes the micro-batches of one group, with every kind of event.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from flushtracker.tracking.group_report import HOLDERS, GroupReport, PendingShape
from flushtracker.tracking.shape_group import ShapeGroup
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.wal.shape_list import is_list, listed_at
from tests.support.group_view import Offset, ShapeFlush, ShapeFragment, shapes_of

Batch = tuple[list[ShapeFragment], list[ShapeFlush]]


@dataclass
class PlainShape:
    """``txns`` are ``[first commit LSN, commit LSN, last operation written, boundary]``."""

    txns: list[list[int]] = field(default_factory=list)
    opened: Offset | None = None
    flushed: Offset | None = None
    removed: Offset | None = None
    since_ms: int = 0

    def is_removed(self, tx: int) -> bool:
        return self.removed is not None and tx <= self.removed[0]

    def is_pending_at(self, tx: int) -> bool:
        return any(begun <= tx for begun in [*(txn[0] for txn in self.txns), *(self.opened or ())[:1]])

    def close(self, tx: int, last_op: int, op: int) -> None:
        self.opened = None
        if self.txns and self.txns[-1][1] == tx:
            self.txns[-1][2:] = [max(self.txns[-1][2], last_op), max(self.txns[-1][3], op)]
        else:
            self.txns.append([tx, tx, last_op, op])

    def add_fragment(self, fragment: ShapeFragment) -> None:
        tx, op = fragment.last_log_offset.tx_offset, fragment.last_log_offset.op_offset
        if self.opened and self.opened[0] < tx:
            self.close(self.opened[0], self.opened[1], self.opened[1])
        if fragment.last_offset is not None and not self.is_removed(tx):
            self.opened = max(self.opened or (-1, 0), (tx, fragment.last_offset.op_offset))
        is_committed = fragment.is_commit or is_list(op) or any(txn[1] == tx for txn in self.txns)
        if self.opened and is_committed:
            self.close(tx, self.opened[1], -1 if is_list(op) else op)

    def settle(self, cursor: Offset, listed: int, max_pending: int) -> None:
        """``listed`` is where a list that is split lists the shape."""
        # Without a commit's own end, the transaction ends with the shape's last operation.
        self.txns = [[*txn[:3], txn[3] if txn[3] >= 0 else txn[2]] for txn in self.txns if not self.is_removed(txn[1])]
        if self.opened and self.is_removed(self.opened[0]):
            self.opened = None
        self.txns = [txn for txn in self.txns if self.flushed is None or (txn[1], txn[2]) > self.flushed]
        if len(self.txns) > max_pending:
            while len(self.txns) > max(1, max_pending // 2):
                pairs = [self.txns[at : at + 2] for at in range(0, len(self.txns), 2)]
                self.txns = [[pair[0][0], *pair[-1][1:]] for pair in pairs]
        if not self.txns and not self.opened:
            # In the list of a transaction, the cursor is past the whole transaction for the shapes up to there.
            done = (cursor[0], OP_INFINITY) if is_list(cursor[1]) and listed <= cursor[1] else cursor
            is_unlisted = is_list(cursor[1]) and done == cursor
            if self.flushed and self.flushed <= done and not (is_unlisted and self.flushed[0] == cursor[0]):
                self.flushed = None
            if self.removed and (self.removed[0], OP_INFINITY) <= done:
                self.removed = None

    def pending(self) -> tuple[Offset, Offset] | None:
        """``(last_flushed, last_sent)``."""
        ranges = [(first, (tx, max(last_op, op))) for first, tx, last_op, op in self.txns]
        if self.opened and not (self.flushed and self.flushed >= self.opened):
            ranges.append((self.opened[0], self.opened))
        if not ranges:
            return None
        before = (ranges[0][0] - 1, 0)
        return max(before, self.flushed or before), max(sent for _, sent in ranges)


class PlainGroup:
    def __init__(self, cursor: LogOffset) -> None:
        self.cursor: Offset = (cursor.tx_offset, cursor.op_offset)
        self.shapes: dict[str, PlainShape] = {}

    def apply(self, batch: Batch, *, now_ms: int, max_pending: int) -> None:
        fragments, flushes = batch
        before = {shape_id: shape.pending() for shape_id, shape in self.shapes.items()}
        for flush in flushes:
            shape = self.shapes.setdefault(flush.shape_id, PlainShape())
            offset = (flush.offset.tx_offset, flush.offset.op_offset)
            if flush.is_removal:
                shape.removed = max(shape.removed or offset, offset)
            else:
                shape.flushed = max(shape.flushed or offset, offset)
        unseen = [(_reach(fragment), fragment) for fragment in fragments if self._is_new(fragment)]
        for reach, fragment in sorted(unseen, key=lambda each: each[1].last_log_offset):
            self.shapes.setdefault(fragment.shape_id, PlainShape()).add_fragment(fragment)
            self.cursor = max(self.cursor, reach)
        for shape_id, shape in list(self.shapes.items()):
            shape.settle(self.cursor, listed_at(shape_id), max_pending)
            then, now = before.get(shape_id), shape.pending()
            if now and (then is None or now[0] > then[0]):
                shape.since_ms = now_ms
            if (shape.txns, shape.opened, shape.flushed, shape.removed) == ([], None, None, None):
                del self.shapes[shape_id]

    def complete(self, ack_lsn: int, *, now_ms: int, max_pending: int) -> None:
        """Everything up to an ack is done: as if each shape with something up to there had been removed there."""
        self.cursor = max(self.cursor, (ack_lsn, OP_INFINITY))
        done = [shape_id for shape_id, shape in self.shapes.items() if shape.is_pending_at(ack_lsn)]
        if done:
            removals = [ShapeFlush(shape_id, LogOffset(ack_lsn, 0), is_removal=True) for shape_id in done]
            self.apply(([], removals), now_ms=now_ms, max_pending=max_pending)

    def _is_new(self, fragment: ShapeFragment) -> bool:
        if is_list(self.cursor[1]) and fragment.last_log_offset.tx_offset == self.cursor[0]:
            return listed_at(fragment.shape_id) > self.cursor[1]
        return _reach(fragment) > self.cursor

    def pending(self) -> list[PendingShape]:
        """All pending shapes, those that have flushed the least first, and of equals the first by id."""
        found = []
        for shape_id, shape in self.shapes.items():
            if each := shape.pending():
                is_open = shape.opened is not None and not (shape.flushed and shape.flushed >= shape.opened)
                found.append(PendingShape(LogOffset(*each[0]), shape_id, shape.since_ms, len(shape.txns) + is_open))
        return sorted(found, key=lambda each: (each.last_flushed, each.shape_id))

    def report(self) -> GroupReport:
        pending = self.pending()
        if not pending:
            return GroupReport()
        sent = max(each[1] for shape in self.shapes.values() if (each := shape.pending()))
        return GroupReport(len(pending), LogOffset(*sent), tuple(pending[:HOLDERS]))

    def to_json(self) -> list[object]:
        """The group as lists."""
        shapes = {
            shape_id: [shape.since_ms, *map(_list, (shape.opened, shape.flushed, shape.removed)), shape.txns]
            for shape_id, shape in self.shapes.items()
        }
        return [list(self.cursor), shapes]


def group_to_json(group: ShapeGroup) -> list[object]:
    """A real group in the same form as :meth:`PlainGroup.to_json`."""
    shapes = {shape_id: view.to_json() for shape_id, view in shapes_of(group).items()}
    return [[group.cursor.tx_offset, group.cursor.op_offset], shapes]


def _list(offset: Offset | None) -> list[int] | None:
    return None if offset is None else list(offset)


def _reach(fragment: ShapeFragment) -> Offset:
    tx, op = fragment.last_log_offset.tx_offset, fragment.last_log_offset.op_offset
    return (tx, OP_INFINITY) if fragment.is_commit else (tx, op)


def random_group_batches(rng: Random, shapes: int, transactions: int) -> list[Batch]:
    """Transactions in order, with resends that are cut anew; flushes and removals anywhere; numbers of all sizes."""
    txns = []
    lsn = rng.choice([50, 2**40])
    for _ in range(transactions):
        lsn += rng.choice([24, 200, 200, 40_000, 2**31, 2**34])
        step = rng.choice([2, 2, 2, 300, 2**20, 2**50])
        operations = [[f"s{n}" for n in range(shapes) if rng.random() < 0.4] for _ in range(rng.randint(1, 4))]
        txns.append((lsn, step, operations))
    stream: list[list[ShapeFragment]] = []
    at = 0
    while at < len(txns):
        stream += _fragments(rng, *txns[at])
        at = max(0, at - rng.randint(0, 3)) if rng.random() < 0.15 else at + 1
    batches: list[Batch] = [([], []) for _ in range(rng.randint(1, 12))]
    numbers = sorted(rng.randrange(len(batches)) for _ in stream)
    for number, fragment in zip(numbers, stream, strict=True):
        batches[number][0].extend(fragment)
    for _ in range(rng.randint(0, 3 * transactions)):
        lsn, step, operations = rng.choice(txns)
        offset = LogOffset(lsn, step * rng.randrange(len(operations)) + rng.choice([0, 0, 1]))
        is_removal = rng.random() < 0.05
        batches[rng.randrange(len(batches))][1].append(ShapeFlush(f"s{rng.randrange(shapes)}", offset, is_removal))
    for fragments, _ in batches:
        rng.shuffle(fragments)
    return batches


def _fragments(rng: Random, lsn: int, step: int, operations: list[list[str]]) -> list[list[ShapeFragment]]:
    """A transaction, cut at random; the commit lists all shapes, or by mistake only those with a change."""
    rows: list[list[ShapeFragment]] = []
    start = 0
    is_complete = rng.random() < 0.9
    for end in range(1, len(operations) + 1):
        is_commit = end == len(operations)
        if not is_commit and rng.random() < 0.5:
            continue
        last = {shape: step * op + (rng.random() < 0.2) for op in range(start, end) for shape in operations[op]}
        listed = sorted({shape for each in operations for shape in each}) if is_commit and is_complete else last
        offsets = {shape: LogOffset(lsn, last[shape]) if shape in last else None for shape in listed}
        if is_commit and rng.random() < 0.3:
            rows += _list_parts(rng, lsn, offsets)
        else:
            at = LogOffset(lsn, step * (end - 1))
            rows.append([ShapeFragment(shape, offset, at, is_commit) for shape, offset in offsets.items()])
        start = end
    return rows


def _list_parts(rng: Random, lsn: int, offsets: Mapping[str, LogOffset | None]) -> list[list[ShapeFragment]]:
    """The commit's shapes in several fragments; the last has the commit."""
    shapes = sorted(offsets, key=listed_at)
    ends = sorted({len(shapes), *rng.sample(range(len(shapes)), rng.randint(0, len(shapes)))} - {0})
    rows: list[list[ShapeFragment]] = []
    for first, end in pairwise([0, *ends]):
        at, is_last = LogOffset(lsn, listed_at(shapes[end - 1])), end == len(shapes)
        rows.append([ShapeFragment(shape, offsets[shape], at, is_last) for shape in shapes[first:end]])
    return rows
