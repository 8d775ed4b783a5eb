"""``TailSource``: a random source with two shapes, what capture publishes of it, and what the log has of that.

Capture reconnects and resends, cut otherwise. Transactions become visible in another order than they commit in, rows
change their schema inside a transaction, and shapes begin again.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from random import Random
from typing import Any, Final

from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.serve.rendering import Rendering
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.log_row import row_json
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import Commit, LogItem, TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.sample_registry import shape_entry
from tests.support.shape_log_rows import SOURCE

SHAPES: Final = ("a", "b")
COMMIT: Final = Commit("2026-01-01T00:00:00.000000Z", 1)
LARGE: Final = "x" * 5_000
"""A value that no tail takes: the tests have a lower limit."""

Published = tuple[str, ChangeColumns]
"""A shape, and an event of it."""


@dataclass(frozen=True)
class Transaction:
    """``items`` by operation and shape; ``schemas`` by operation; ``incarnations`` by shape."""

    lsn: int
    xid: int
    items: tuple[dict[str, tuple[LogItem, ...]], ...]
    schemas: tuple[int, ...]
    incarnations: dict[str, int]

    @cached_property
    def shapes(self) -> frozenset[str]:
        return frozenset(shape_id for operation in self.items for shape_id in operation)

    def of(self, shape_id: str) -> list[LogItem]:
        return [item for operation in self.items for item in operation.get(shape_id, ())]

    def schemas_of(self, shape_id: str) -> set[int]:
        return {schema for operation, schema in zip(self.items, self.schemas, strict=True) if shape_id in operation}

    def rows(self, shape_id: str) -> list[tuple[Any, ...]]:
        return [
            (*item.offset, item.operation, item.key, row_json(item.value), row_json(item.old_value), self.xid)
            for item in self.of(shape_id)
        ]


@dataclass
class LogShape:
    """A shape in the log and the registry."""

    incarnation: int = 1
    starts_after: int = 9
    schema: int = 0
    snapshot: ShapeSnapshot | None = None


class TailSource:
    """Each step is a method; ``counts`` has what has happened. The oracle is ``transactions``."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.counts = Counter[str]()
        self.lsn, self.next_xid, self.running = 1_000, 104, [101, 102, 103]
        self.transactions = list[Transaction]()
        self.schema = 0
        self.live = {shape_id: LogShape() for shape_id in SHAPES}
        self.logged = {shape_id: LogShape() for shape_id in SHAPES}
        """As the log and the registry have them; ``live`` is the truth."""
        self.written, self.published, self.sent = 0, 0, 0
        """How many transactions the log has, the topic has whole, and this connection has sent."""
        self.cut: int | None = None
        self.topic = list[Published]()
        self._parts = list[list[Published]]()
        """What is still to be sent of a transaction."""
        self.connect()

    def commit(self) -> None:
        rng = self.rng
        self.lsn += 8 * rng.randint(1, 4)
        xid = self.running.pop(rng.randrange(len(self.running)))
        self.running.append(self.next_xid)
        self.next_xid += 1
        count = rng.randint(1, 6)
        altered_at = rng.randrange(count) if rng.random() < 0.01 else count
        schemas = tuple(self.schema + (number >= altered_at) for number in range(count))
        self.schema = schemas[-1]
        items = tuple(self._operation(number) for number in range(count))
        incarnations = {shape_id: shape.incarnation for shape_id, shape in self.live.items()}
        self.transactions.append(Transaction(self.lsn, xid, items, schemas, incarnations))

    def _operation(self, number: int) -> dict[str, tuple[LogItem, ...]]:
        rng, kind = self.rng, "insert"
        if rng.random() < 0.008:
            kind = rng.choice(["truncate", "truncate_partition"])
        value = {"id": LARGE if rng.random() < 0.01 else str(rng.randint(0, 9))}
        offset = LogOffset(self.lsn, 2 * number)
        one: Any = LogItem(offset, "truncate") if kind == "truncate" else LogItem(offset, kind, "k", value)  # type: ignore[arg-type]
        split = (one, LogItem(LogOffset(self.lsn, 2 * number + 1), "delete", "k", value))
        return {shape_id: rng.choice([(one,), (one,), split]) for shape_id in SHAPES if rng.random() < 0.6}

    def alter(self) -> None:
        self.schema += 1

    def resync(self) -> None:
        shape = self.live[self.rng.choice(SHAPES)]
        self.lsn += 8
        shape.incarnation, shape.starts_after = shape.incarnation + 1, self.lsn
        self.counts["resyncs"] += 1

    # Capture.

    def connect(self) -> None:
        """Nothing that the log lacks is confirmed."""
        upto = self.transactions[self.written].lsn if self.written < len(self.transactions) else self.lsn + 8
        confirmed = self.rng.choice([upto, upto, self.rng.randint(upto - 100, upto)])
        self.sequencer = FragmentSequencer(SOURCE, confirmed, max_event_bytes=64 << 20)
        self.sent = sum(each.lsn < confirmed for each in self.transactions)
        self.sends_ended = self.rng.random() < 0.5
        self._parts = []

    def publish(self) -> None:
        """Send the next fragment."""
        if not self._parts and self.sent < len(self.transactions):
            self._parts = self._fragments(self.transactions[self.sent])
        if self._parts:
            self.topic += self._parts.pop(0)
            if not self._parts:
                self.sent += 1
                self.published = max(self.published, self.sent)

    def _fragments(self, tx: Transaction) -> list[list[Published]]:
        count = len(tx.items)
        altered = {at for at in range(1, count) if tx.schemas[at] != tx.schemas[at - 1]}
        cuts = [0, *sorted(altered | {at for at in range(1, count) if self.rng.random() < 0.6}), count]
        sent, found = set[str](), []
        shapes = [each for each in SHAPES if self.sends_ended or tx.incarnations[each] == self.live[each].incarnation]
        for first, last in pairwise(cuts):
            end, commit = LogOffset(tx.lsn, 2 * (last - 1)), COMMIT if last == count else None
            parts = []
            for shape_id in shapes:
                items = tuple(item for operation in tx.items[first:last] for item in operation.get(shape_id, ()))
                if items or (commit is not None and shape_id in sent):
                    routed = RoutedFragment(shape_id, tx.xid, tx.lsn, end, shape_id not in sent, commit, items)
                    schema = str(tx.schemas[last - 1])
                    parts.append(replace(routed, incarnation=tx.incarnations[shape_id], schema=schema))
                    sent.add(shape_id)
            fragment = TransactionFragment(tx.xid, tx.lsn, end, has_begin=first == 0, commit=commit)
            events = self.sequencer.sequence(fragment, parts).shape_changes
            found.append([(each.shape_id, ChangeColumns.of(each)) for each in events])
        return found

    # The log and the registry.

    def write(self) -> None:
        self.written = self.rng.randint(self.written, self.published)

    def note_cut(self) -> None:
        complete = self.transactions[self.written].lsn - 1 if self.written < len(self.transactions) else self.lsn
        self.cut = self.rng.randint(self.cut or 0, complete)

    def take_snapshot(self) -> None:
        """It also lacks some transactions that the log may have long since, because they are not visible yet."""
        shape_id = self.rng.choice(SHAPES)
        live, logged = self.live[shape_id], self.logged[shape_id]
        before = logged.snapshot
        recent = [x for x in self.transactions[-4:] if before is None or not before.contains(x.lsn, x.xid)]
        hidden = {x.xid for x in recent if x.lsn > live.starts_after and self.rng.random() < 0.4}
        xip = tuple(sorted({*self.running, *hidden}))
        snapshot = ShapeSnapshot(
            *(1 if before is None else before.attempt + 1, MvccSnapshot(xip[0], self.next_xid, xip)),
            *(self.lsn, self.next_xid),
            incarnation=live.incarnation,
            starts_after=-1 if live.incarnation == 1 else live.starts_after,
        )
        if snapshot.may_replace(before):
            logged.snapshot, logged.incarnation, logged.starts_after = snapshot, live.incarnation, live.starts_after

    def fold(self) -> None:
        shape_id = self.rng.choice(SHAPES)
        logged = self.logged[shape_id]
        before = logged.snapshot
        if before is None:
            return
        least = max(before.lsn, before.starts_after)
        logs = [x for x in self.transactions[: self.written] if x.incarnations[shape_id] == logged.incarnation]
        if horizons := [x.lsn for x in logs if x.lsn >= least]:
            horizon = self.rng.choice(horizons)
            xid = max(x.xid for x in logs if x.lsn <= horizon)
            logged.snapshot = ShapeSnapshot.fold(before.attempt + 1, horizon, xid, before)

    def register(self) -> None:
        self.logged[self.rng.choice(SHAPES)].schema = self.schema

    def seen(self, shape_id: str) -> SeenShape | None:
        """The shape as a look finds it; ``None`` if it has begun again and has no snapshot since."""
        logged = self.logged[shape_id]
        logs = [x for x in self.transactions[: self.written] if shape_id in x.shapes]
        if any(x.incarnations[shape_id] > logged.incarnation for x in logs):
            return None
        entry = shape_entry(shape_id, starts_after=LogOffset(logged.starts_after, 0))
        entry = replace(entry, definition=replace(entry.definition, incarnation=logged.incarnation, snapshot=False))
        last = logs[-1].lsn if logs else None
        found = FoundShape(self.written, SOURCE, shape_id, last, logged.snapshot, entry, None)
        digest = f"{logged.incarnation:08x}{logged.schema:08x}"
        facts = ShapeFacts(digest, "0" * 8, "{}", Rendering(), "table", str(logged.schema))
        return SeenShape(found, facts, self.cut)
