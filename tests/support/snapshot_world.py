"""A table as PostgreSQL keeps it, for snapshots of a shape over it: transactions that overlap, and who sees which.

A transaction gets its xid with its first change, commits at an LSN, and becomes visible some time after that, in any
order. A key that it has changed is locked until then. A rolled-back one leaves only its xid behind. The shape has all
of the table from ``starts_after`` on, and is routed by LSN alone.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from flushtracker.shape_log.fold import TRUNCATE_PARTITION
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.item_key import partition_of
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.shape_log_rows import Row, commit, item

Table = dict[str, dict[str, str | None]]
XIDS = 2**32


@dataclass
class Transaction:
    """``xid`` has 64 bits. ``changes`` are items without their offset; ``lsn`` is that of the commit."""

    xid: int
    changes: list[tuple[str, str | None, dict[str, str | None] | None]]
    lsn: int | None = None

    @property
    def keys(self) -> set[str]:
        return {key for _, key, _ in self.changes if key is not None}

    def rows(self) -> list[Row]:
        """What the writer appends of it."""
        assert self.lsn is not None
        items = [item((self.lsn, 2 * n), *change) for n, change in enumerate(self.changes)]
        return [row | {"xid": self.xid % XIDS} for row in (*items, commit(self.lsn))]


@dataclass
class SnapshotWorld:
    """``routed`` are the shape's transactions in the order of their commits; ``seen`` those that each attempt saw."""

    seed: int
    next_xid: int
    lsn: int = 1000
    open: list[Transaction] = field(default_factory=list)
    invisible: list[Transaction] = field(default_factory=list)
    visible: list[Transaction] = field(default_factory=list)
    starts_after: int | None = None
    seen: dict[int, list[Transaction]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311  reproducible
        self._last_ended = self.next_xid - 1

    @property
    def committed(self) -> list[Transaction]:
        return sorted([*self.visible, *self.invisible], key=lambda each: each.lsn or 0)

    @property
    def routed(self) -> list[Transaction]:
        return [each for each in self.committed if (each.lsn or 0) > (self.starts_after or 0)]

    @property
    def is_start_visible(self) -> bool:
        """Whether all that committed before the shape's start can be seen."""
        return self.starts_after is not None and all((each.lsn or 0) > self.starts_after for each in self.invisible)

    @property
    def is_truncated(self) -> bool:
        """Whether a TRUNCATE has the table's lock, for which a snapshot waits, as everything else does."""
        return any(change[0] == "truncate" for each in (*self.open, *self.invisible) for change in each.changes)

    def step(self) -> None:
        """One thing happens to some transaction."""
        draw = self.rng.random()
        if draw < 0.35 or not (self.open or self.invisible):
            self._begin()
        elif draw < 0.65 and self.open:
            ended = self.open.pop(self.rng.randrange(len(self.open)))
            if self.rng.random() < 0.1:
                self._last_ended = max(self._last_ended, ended.xid)
                return
            self.lsn += 8 * self.rng.randint(4, 11)
            ended.lsn = self.lsn
            self.invisible.append(ended)
        elif self.invisible:
            ended = self.invisible.pop(self.rng.randrange(len(self.invisible)))
            self.visible.append(ended)
            self._last_ended = max(self._last_ended, ended.xid)

    def _begin(self) -> None:
        locked = {key for each in (*self.open, *self.invisible) for key in each.keys}
        if self.is_truncated:
            return
        rows, made = table_after(self.visible), Transaction(self.next_xid, [])
        if not (self.open or self.invisible) and self.rng.random() < 0.1:
            made.changes.append(("truncate", None, None))
            rows = {}
        for key in self.rng.sample([f"k{n}" for n in range(8)], self.rng.randint(1, 3)):
            if key not in locked:
                made.changes += self._changes(key, rows)
        if made.changes:
            self.next_xid += self.rng.choice([1, 1, 3])  # Subtransactions have xids, too.
            self.open.append(made)

    def _changes(self, key: str, rows: Table) -> list[tuple[str, str | None, dict[str, str | None] | None]]:
        value: dict[str, str | None] = {"id": key, "n": str(self.rng.random())}
        if key not in rows:
            return [("insert", key, value)]
        if self.rng.random() < 0.4:
            return [("delete", key, {"id": key})]
        if self.rng.random() < 0.3:
            return [("delete", key, {"id": key}), ("insert", key, value)]
        return [("update", key, {"n": value["n"]})]

    def start(self) -> None:
        """Add the shape: it is routed from here on."""
        self.starts_after = self.lsn + 7

    def snapshot(self, attempt: int) -> tuple[ShapeSnapshot, Table]:
        """Take a snapshot of the shape; transactions may end before the end of the WAL is read."""
        xmax = self._last_ended + 1
        running = tuple(sorted(each.xid for each in (*self.open, *self.invisible) if each.xid < xmax))
        visible, rows = MvccSnapshot(min(running, default=xmax), xmax, running), table_after(self.visible)
        self.seen[attempt] = list(self.visible)
        for _ in range(self.rng.choice([0, 0, 4])):
            self.step()
        return ShapeSnapshot(attempt, visible, self.lsn + 8, self.next_xid), rows

    def expected(self, attempt: int, bound: int) -> Table:
        """What a reader has that begins with the snapshot of ``attempt`` and has read up to ``bound``."""
        read = [each for each in self.committed if (each.lsn or 0) <= bound and each not in self.seen[attempt]]
        return table_after([*self.seen[attempt], *read])


def table_after(transactions: Iterable[Transaction]) -> Table:
    """The table that these transactions leave, in the order of their commits: those that overlap change other keys."""
    rows: Table = {}
    for each in sorted(transactions, key=lambda each: each.lsn or 0):
        for change in each.changes:
            apply(rows, *change)
    return rows


def apply(rows: Table, operation: str, key: str | None, value: dict[str, str | None] | None) -> None:
    """Raises ``AssertionError`` for a change that cannot follow."""
    if operation == "truncate":
        rows.clear()
        return
    assert key is not None
    if operation == TRUNCATE_PARTITION:
        for each in [each for each in rows if partition_of(each) == key]:
            del rows[each]
        return
    assert (key in rows) == (operation != "insert"), f"{operation} of {key} cannot follow"
    if operation == "delete":
        del rows[key]
    else:
        rows[key] = {**rows.get(key, {}), **(value or {})}
