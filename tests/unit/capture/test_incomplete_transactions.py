"""Which open transactions a shape must wait for, against a model of a server that sends only what was published."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from flushtracker.capture.shapes.delayed_shapes import SLOW_S, DelayedShapes
from flushtracker.capture.shapes.incomplete_transactions import MAX_HORIZONS, IncompleteTransactions
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.mvcc_snapshot import CatalogRow, MvccSnapshot
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import UnmanagedPublication
from tests.support.seeded_histories import played

FIRST_XID: Final = 2**32 - 40
TABLES: Final = (1, 2, 3)
HISTORIES: Final = 400
STEPS: Final = 120


@dataclass
class Transaction:
    """``xids``: its own and those of its subtransactions, of 64 bits. ``unsent``: tables that it changed too early."""

    xids: list[int]
    writes: set[int] = field(default_factory=set)
    unsent: set[int] = field(default_factory=set)
    publishes: dict[int, int] = field(default_factory=dict)
    """Tables that its commit publishes, with the xid of the row."""

    @property
    def xid(self) -> int:
        return self.xids[0]


@dataclass
class Server(UnmanagedPublication):
    """A server with three tables, each of which has one row that publishes it, or none."""

    next: int = FIRST_XID
    last_ended: int = FIRST_XID - 1
    standby: bool = False
    between: Callable[[], None] = lambda: None
    """What happens before each query."""
    oldest: int | None = None
    """The slot's ``catalog_xmin``."""
    open: list[Transaction] = field(default_factory=list)
    published: dict[int, CatalogRow] = field(default_factory=dict)

    def begin(self) -> Transaction:
        self.open.append(Transaction([self._new_xid()]))
        return self.open[-1]

    def _new_xid(self) -> int:
        self.next += 1
        if self.next % 2**32 == 1:
            # No transaction has an xid below 3.
            self.next += 3
        return self.next - 1

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: table(oid) for oid in oids}

    def write(self, transaction: Transaction, table: int) -> None:
        transaction.writes.add(table)
        if table not in self.published:
            transaction.unsent.add(table)

    def publish(self, transaction: Transaction, table: int, *, in_subtransaction: bool) -> None:
        if in_subtransaction:
            transaction.xids.append(self._new_xid())
        transaction.publishes[table] = transaction.xids[-1]

    def end(self, transaction: Transaction, *, commits: bool) -> None:
        self.open.remove(transaction)
        self.last_ended = max(self.last_ended, *transaction.xids)
        if commits:
            for table, xid in transaction.publishes.items():
                self.published[table] = CatalogRow(f"table {table} of {xid}", xid % 2**32)

    def hide(self, table: int) -> None:
        """Take it out of the publication at once."""
        self.published.pop(table, None)

    def is_standby(self) -> bool:
        return self.standby

    def snapshot(self) -> MvccSnapshot:
        self.between()
        xmax = self.last_ended + 1
        xip = tuple(sorted(each.xid for each in self.open if each.xid < xmax))
        return MvccSnapshot(min([xmax, *xip]), xmax, xip)

    def in_progress(self) -> dict[int, bool]:
        self.between()
        return {} if self.standby else {each.xid % 2**32: False for each in self.open}

    def publication_rows(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        self.between()
        return {oid: frozenset({self.published[oid]}) for oid in oids if oid in self.published}

    def unnoticed_rows(self, _oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {}

    def writers(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        self.between()
        if self.standby:
            return {}
        return {
            oid: frozenset(xid % 2**32 for each in self.open if oid in each.writes for xid in each.xids) for oid in oids
        }

    def next_xid(self) -> int:
        self.between()
        return self.next

    def held_xmin(self) -> int | None:
        return self.slot_xmin()

    def slot_xmin(self) -> int | None:
        return self.oldest


class History:
    """Random transactions, publications and shapes; a shape is added when nothing is to be waited for."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.server = Server(standby=self.rng.random() < 0.2)
        for table in TABLES[: self.rng.randrange(3)]:
            self.server.published[table] = CatalogRow(f"table {table}", FIRST_XID - 10)
        self.subject = IncompleteTransactions(self.server)
        self.server.between = self.change
        self.added = self.delayed = 0

    def play(self) -> None:
        steps = [self.begin, self.write, self.publish, self.end, self.hide, self.add, self.reconnect]
        for _ in range(STEPS):
            self.rng.choices(steps, [5, 8, 2, 4, 0.5, 6, 0.3])[0]()

    def change(self) -> None:
        """Let some transactions do something."""
        for _ in range(self.rng.choice([0, 0, 1, 3])):
            self.rng.choice([self.begin, self.write, self.write, self.publish, self.end])()

    def begin(self) -> None:
        if len(self.server.open) < 8:
            self.server.begin()

    def write(self) -> None:
        if self.server.open:
            self.server.write(self.rng.choice(self.server.open), self.rng.choice(TABLES))

    def publish(self) -> None:
        if self.server.open:
            transaction, table = self.rng.choice(self.server.open), self.rng.choice(TABLES)
            self.server.publish(transaction, table, in_subtransaction=self.rng.random() < 0.4)

    def end(self) -> None:
        if self.server.open:
            self.server.end(self.rng.choice(self.server.open), commits=self.rng.random() < 0.8)

    def hide(self) -> None:
        self.server.hide(self.rng.choice(TABLES))

    def reconnect(self) -> None:
        self.subject = IncompleteTransactions(self.server)

    def add(self) -> None:
        oids = self.rng.sample(TABLES, self.rng.randint(1, len(TABLES)))
        tables = [table for table in oids if table in self.server.published]
        waits = self.subject.transactions(tables)
        for table in tables:
            unsent = {each.xid % 2**32 for each in self.server.open if table in each.unsent}
            if table not in waits:
                assert not unsent, f"of table {table}, changes of {unsent} are not all sent"
                self.added += 1
            else:
                assert self.server.standby or unsent <= waits[table]
                self.delayed += 1


def test_no_shape_is_added_while_a_transaction_is_open_of_which_changes_are_not_sent() -> None:
    """Over random histories, with rows that were written by subtransactions, and over the wraparound of xids."""
    added = delayed = 0
    for history in played(History, HISTORIES):
        added, delayed = added + history.added, delayed + history.delayed
    assert added > 10 * HISTORIES
    assert delayed > HISTORIES


@pytest.mark.parametrize("standby", [False, True])
def test_only_what_was_open_is_waited_for(*, standby: bool) -> None:
    """On a busy table somebody writes at every moment; and what began later is sent completely."""
    server = Server(standby=standby)
    subject = IncompleteTransactions(server)
    early = server.begin()
    server.write(early, 1)
    publisher = server.begin()
    server.publish(publisher, 1, in_subtransaction=False)
    server.end(publisher, commits=True)
    assert subject.transactions([1]) == {1: frozenset({early.xid % 2**32})}
    later = server.begin()
    server.write(later, 1)
    assert subject.transactions([1]) == {1: frozenset({early.xid % 2**32})}
    server.end(early, commits=True)
    assert subject.transactions([1]) == {}


def test_a_table_published_before_the_connection_began_waits_for_nothing_that_began_later() -> None:
    """Although an older transaction, of another table, is open all the time."""
    server = Server()
    old, publisher = server.begin(), server.begin()
    server.write(old, 2)
    server.publish(publisher, 1, in_subtransaction=False)
    server.end(publisher, commits=True)
    subject = IncompleteTransactions(server)
    assert subject.transactions([1]) == {}
    later = server.begin()
    server.write(later, 1)
    assert subject.transactions([1]) == {}
    server.publish(later, 3, in_subtransaction=False)
    server.end(later, commits=True)
    assert subject.transactions([1, 3]) == {}


def test_a_frozen_row_of_long_ago_is_older_than_everything() -> None:
    """Its xid is nearly that of a transaction to come; xids below 3 are of rows as old as the database."""
    server = Server(next=2**33 + 50, last_ended=2**33 + 49)
    server.published = {1: CatalogRow("a", 100), 2: CatalogRow("b", 2)}
    open_one = server.begin()
    subject = IncompleteTransactions(server)
    for table in (1, 2):
        server.write(open_one, table)
    assert subject.transactions([2]) == {2: frozenset({50})}
    server.end(open_one, commits=True)
    assert subject.transactions([1, 2]) == {}


def test_horizons_are_bounded_and_old_ones_are_not_compared_with() -> None:
    """Each publication adds one; and xids of 2**31 transactions ago would seem to be in the future."""
    server = Server()
    subject = IncompleteTransactions(server)
    for _ in range(3 * MAX_HORIZONS):
        publisher = server.begin()
        server.publish(publisher, 1, in_subtransaction=False)
        server.end(publisher, commits=True)
        subject.transactions([1])
    assert len(subject._horizons) == MAX_HORIZONS
    server.next += 3 * 2**30
    early, publisher = server.begin(), server.begin()
    server.write(early, 2)
    server.publish(publisher, 2, in_subtransaction=False)
    server.end(publisher, commits=True)
    assert subject.transactions([2]) == {2: frozenset({early.xid % 2**32})}


def table(oid: int) -> TableBinding:
    return TableBinding(oid, ("public", f"t{oid}"), ID_KEY, (), published_by=("all tables",))


def test_delayed_shapes_are_logged_once_with_what_they_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    """A shape that is delayed again keeps its age; each is added as soon as its own table's transactions have ended."""
    server = Server()
    first, second, publisher = server.begin(), server.begin(), server.begin()
    for each, written in ((first, 1), (second, 1), (second, 2)):
        server.write(each, written)
    for published in (1, 2):
        server.publish(publisher, published, in_subtransaction=False)
    server.end(publisher, commits=True)
    delayed = DelayedShapes()
    delayed.connect(server)
    new = [(ShapeDefinition(name, ("public", "t")), table(oid)) for name, oid in (("a", 1), ("b", 2), ("c", 2))]
    assert delayed.admit(new, {}, is_new_source=False) == []
    for seconds in (0, SLOW_S, SLOW_S + 1, SLOW_S + 5):
        delayed.log_slow(seconds)
        assert not delayed.is_any_ready()
    logged = [message.split(" reason=")[0] for message in caplog.messages]
    assert logged == [f"shapes not added yet shape_ids={names}" for names in ("a", "b, c")]
    xids = f"{first.xid % 2**32}, {second.xid % 2**32}"
    assert f"changes of table public.t1 by transaction {xids}, which may have begun before" in caplog.text
    server.end(second, commits=True)
    assert delayed.is_any_ready()
    added = delayed.admit(new, {}, is_new_source=False)
    assert [(each.definition.id, each.starts_at_slot) for each in added] == [("b", False), ("c", False)]
    delayed.log_slow(3 * SLOW_S)
    assert len(caplog.messages) == 2
    server.end(first, commits=True)
    assert delayed.is_any_ready()
    assert [each.definition.id for each in delayed.admit(new[:1], {}, is_new_source=False)] == ["a"]
    assert not delayed.is_any_ready()


@pytest.mark.parametrize("slot_xmin", [None, FIRST_XID - 5, FIRST_XID - 20])
def test_a_shape_of_a_new_source_has_all_that_the_slot_has_if_its_table_was_published_before(
    slot_xmin: int | None,
) -> None:
    """A slot is created when all open transactions have ended, so it has everything of those that are open now.

    With a snapshot the shape waits nevertheless: the slot may have been read before.
    """
    server = Server()
    server.published = {oid: CatalogRow(f"table {oid}", FIRST_XID - 10) for oid in (1, 2)}
    server.oldest = slot_xmin
    server.write(server.begin(), 1)
    delayed = DelayedShapes()
    delayed.connect(server)
    shapes = [
        (ShapeDefinition(f"{oid} {snapshot}", ("public", "t"), snapshot=snapshot), table(oid))
        for oid in (1, 2)
        for snapshot in (True, False)
    ]
    added = {each.definition.id: each.starts_at_slot for each in delayed.admit(shapes, {}, is_new_source=True)}
    is_before = slot_xmin == FIRST_XID - 5
    assert added == {"2 True": is_before, "2 False": is_before} | ({"1 False": True} if is_before else {})
    assert not any(each.starts_at_slot for each in delayed.admit(shapes, {}, is_new_source=False))
