"""Tables that a session of the server sends nothing of, against a model of what its sessions remember of tables."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from flushtracker.capture.shapes.delayed_shapes import SLOW_S, DelayedShapes
from flushtracker.capture.shapes.incomplete_transactions import IncompleteTransactions
from flushtracker.errors import PostgresUnavailableError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import TableBinding
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import QuietServer
from tests.support.seeded_histories import played

TABLES: Final = (1, 2, 3)
FIRST_XID: Final = 2**32 - 30
HISTORIES: Final = 300
STEPS: Final = 120


@dataclass(frozen=True)
class Commit:
    """A transaction that changed ``table``, or published it; ``oldest`` was the oldest open one when it had ended."""

    table: int
    publishes: bool
    oldest: int


@dataclass
class Server(QuietServer):
    """Its WAL is a list of commits. A session that sees a change of a table which is not published never sends it."""

    next: int = FIRST_XID
    open: set[int] = field(default_factory=set)
    wal: list[Commit] = field(default_factory=list)
    links: dict[int, int] = field(default_factory=dict)
    confirmed: int = 0
    session_start: int = 0

    def begin(self) -> int:
        xid, self.next = self.next, self.next + 1
        if self.next % 2**32 == 0:
            # No transaction has an xid below 3.
            self.next += 3
        self.open.add(xid)
        return xid

    def commit(self, xid: int, table: int, *, publishes: bool) -> None:
        self.open.remove(xid)
        if publishes:
            self.links[table] = xid
        self.wal.append(Commit(table, publishes, min(self.open, default=self.next)))

    def may_send_nothing_of(self, table: int) -> bool:
        """Whether the session has seen a change of the table from before it was published."""
        found = [each for each in self.wal if each.table == table]
        published_at = max(n for n, each in enumerate(self.wal) if each in found and each.publishes)
        return any(each.table == table and not each.publishes for each in self.wal[self.session_start : published_at])

    def unnoticed_rows(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {oid: frozenset({self.links[oid] % 2**32}) for oid in oids if oid in self.links}

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: TableBinding(oid, ("public", f"t{oid}"), ID_KEY, (), published_by=("table",)) for oid in oids}

    def next_xid(self) -> int:
        return self.next

    def slot_xmin(self) -> int:
        oldest = self.wal[self.confirmed - 1].oldest if self.confirmed else FIRST_XID
        return oldest % 2**32

    def held_xmin(self) -> int:
        return self.slot_xmin()


class History:
    """Random transactions, a slot that advances, and shapes; each table is published once, by a link."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.server = Server()
        self.subject = IncompleteTransactions(self.server)
        self.added = self.delayed = self.reconnected = 0

    def play(self) -> None:
        for _ in range(STEPS):
            self.rng.choices([self.begin, self.end, self.confirm, self.add, self.reconnect], [4, 4, 2, 4, 0.3])[0]()

    def begin(self) -> None:
        if len(self.server.open) < 4:
            self.server.begin()

    def end(self) -> None:
        if self.server.open:
            xid, table = self.rng.choice(sorted(self.server.open)), self.rng.choice(TABLES)
            publishes = table not in self.server.links and self.rng.random() < 0.2
            self.server.commit(xid, table, publishes=publishes)

    def confirm(self) -> None:
        self.server.confirmed = self.rng.randint(self.server.confirmed, len(self.server.wal))

    def reconnect(self) -> None:
        self.server.session_start = self.server.confirmed
        self.subject = IncompleteTransactions(self.server)
        self.reconnected += 1

    def add(self) -> None:
        published = set(self.server.links)
        try:
            unnoticed = self.subject.unnoticed(published)
        except PostgresUnavailableError:
            self.reconnect()
            return
        self.delayed += len(unnoticed)
        for table in published - unnoticed:
            assert not self.server.may_send_nothing_of(table), f"changes of table {table} are not sent"
            self.added += 1


def test_no_shape_is_added_while_the_session_remembers_its_table_as_not_published() -> None:
    """Nor by a later session that sees changes of the table from before it was published again."""
    histories = list(played(History, HISTORIES))
    assert sum(history.added for history in histories) > 5 * HISTORIES
    assert sum(history.delayed for history in histories) > 5 * HISTORIES
    assert sum(history.reconnected for history in histories) > 2 * HISTORIES


def test_a_link_of_long_ago_delays_nothing() -> None:
    """Its xid seems to be in the future."""
    server = Server(next=2**33 + 50, links={1: 100, 2: 2})
    server.wal, server.confirmed = [Commit(1, publishes=True, oldest=2**33 + 40)], 1
    assert IncompleteTransactions(server).unnoticed({1, 2}) == frozenset()


def test_a_delayed_shape_is_logged_and_added_over_the_next_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Which begins once the slot has passed the link."""
    server, delayed = Server(), DelayedShapes()
    server.commit(server.begin(), 1, publishes=False)
    delayed.connect(server)
    server.commit(server.begin(), 1, publishes=True)
    table = server.bindings([1])[1]
    shapes = [(ShapeDefinition("a", table.table), table)]
    assert delayed.admit(shapes, {}, is_new_source=False) == []
    assert [each.shape_ids for each in delayed.waiting] == [("a",)]
    for seconds in (0, SLOW_S, SLOW_S + 1):
        delayed.log_slow(seconds)
    assert len(caplog.messages) == 1
    assert "shape_ids=a reason=table public.t1: PostgreSQL may not send all" in caplog.text
    server.confirmed = 2
    assert delayed.is_any_ready()
    with pytest.raises(PostgresUnavailableError, match="connect again"):
        delayed.admit(shapes, {}, is_new_source=False)
    delayed.connect(server)
    assert [each.definition.id for each in delayed.admit(shapes, {}, is_new_source=False)] == ["a"]
