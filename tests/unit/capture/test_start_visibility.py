"""When a shape's start is visible, against a model of a server whose commits become visible in another order."""

import logging
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from flushtracker.capture.shapes.delayed_shapes import SLOW_S
from flushtracker.capture.shapes.start_visibility import CHECKS, PRUNE_TRANSACTIONS, StartVisibility
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.seeded_histories import played

FIRST_XID: Final = 2**32 - 60
HISTORIES: Final = 300
STEPS: Final = 250


@dataclass
class Transaction:
    """``lsn``: of its commit. ``waits``: for a standby. ``is_sent``: it concerns a published table."""

    xid: int
    is_sent: bool
    lsn: int | None = None
    waits: bool = False
    has_ended: bool = False


@dataclass
class Server:
    """A server as its own documentation describes it; xids have 64 bits here."""

    wal_end: int = 1000
    transactions: list[Transaction] = field(default_factory=list)
    last_ended: int = FIRST_XID
    is_role_privileged: bool = True
    looks_awake: set[int] = field(default_factory=set)
    """Transactions that wait, but are just now not seen to: a signal has woken them for a moment."""
    queries: int = 0
    flushes: list[int] = field(default_factory=list)

    def begin(self, *, is_sent: bool = True) -> Transaction:
        self.transactions.append(Transaction(FIRST_XID + len(self.transactions) + 1, is_sent))
        return self.transactions[-1]

    def commit(self, transaction: Transaction, *, waits: bool) -> None:
        """Write the commit record; the transaction is invisible until it ends."""
        transaction.lsn, transaction.waits = self.wal_end, waits
        self.wal_end += 40

    def end(self, transaction: Transaction) -> None:
        transaction.has_ended = True
        self.last_ended = max(self.last_ended, transaction.xid)

    @property
    def open(self) -> list[Transaction]:
        return [each for each in self.transactions if not each.has_ended]

    @property
    def invisible(self) -> list[Transaction]:
        return [each for each in self.open if each.lsn is not None]

    def snapshot(self) -> MvccSnapshot:
        self.queries += 1
        xmax = self.last_ended + 1
        xip = tuple(each.xid for each in self.open if each.xid < xmax)
        return MvccSnapshot(min(xip, default=xmax), xmax, xip)

    def is_standby(self) -> bool:
        return False

    def in_progress(self) -> dict[int, bool]:
        self.queries += 1
        return {each.xid % 2**32: self._may_wait(each) for each in self.open}

    def _may_wait(self, transaction: Transaction) -> bool:
        return not self.is_role_privileged or (transaction.waits and transaction.xid not in self.looks_awake)

    def flush_wal(self, lsn: int) -> None:
        self.flushes.append(lsn)


class History:
    """Random steps of the server, of the connections to it, and of shapes that are added."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.server = Server(is_role_privileged=self.rng.random() < 0.8)
        self.starts: dict[str, int] = {}
        self.awake: dict[int, int] = {}
        self.flagged = 0
        self.now_s = 0.0
        self.confirmed_lsn = self.sent_lsn = self.server.wal_end
        self.subject = StartVisibility(self.server, self.confirmed_lsn)

    def play(self) -> None:
        steps = [self.begin, self.commit, self.end, self.roll_back, self.send, self.add, self.check, self.remove]
        weights = [6, 6, 5, 1, 6, 2, 6, 0.2]
        for _ in range(STEPS):
            self.rng.choices([*steps, self.restart], [*weights, 0.5])[0]()
        self.settle()

    def begin(self) -> None:
        self.server.begin(is_sent=self.rng.random() < 0.9)

    def commit(self) -> None:
        running = [each for each in self.server.open if each.lsn is None]
        if running:
            transaction = self.rng.choice(running)
            self.server.commit(transaction, waits=self.rng.random() < 0.5)
            if not transaction.is_sent and not transaction.waits:
                # The stream does not tell of it, so it is visible by the time of the next checks.
                self.server.end(transaction)

    def end(self) -> None:
        if self.server.invisible:
            self.server.end(self.rng.choice(self.server.invisible))

    def roll_back(self) -> None:
        running = [each for each in self.server.open if each.lsn is None]
        if running:
            self.server.end(self.rng.choice(running))

    def send(self, most: int = 3) -> None:
        """Send what committed next, and perhaps a keepalive."""
        sent = sorted(
            (each.lsn, each.xid)
            for each in self.server.transactions
            if each.is_sent and (each.lsn or 0) >= self.sent_lsn
        )[:most]
        for lsn, xid in sent:
            assert lsn is not None
            self.subject.handle_transaction(lsn, xid % 2**32)
            self.sent_lsn = lsn + 1
        if len(sent) < most:
            self.sent_lsn = self.server.wal_end
            self.subject.handle_keepalive(self.sent_lsn)

    def add(self) -> None:
        names = [f"{len(self.starts)}-{number}" for number in range(self.rng.choice([1, 1, 3]))]
        added = dict.fromkeys(names, self.server.wal_end - 1)
        self.starts |= added
        self.subject.wait_for(added)

    def remove(self) -> None:
        if self.starts:
            shape_id = self.rng.choice(list(self.starts))
            del self.starts[shape_id]
            self.subject.forget(shape_id)

    def restart(self) -> None:
        """Another connection, which sends from where the slot is confirmed by now; commits take no time over that."""
        self.confirmed_lsn = self.sent_lsn = self.rng.randint(self.confirmed_lsn, self.sent_lsn)
        for each in self.server.invisible:
            if each.lsn is not None and each.lsn < self.confirmed_lsn and not each.waits:
                self.server.end(each)
        self.subject = StartVisibility(self.server, self.confirmed_lsn)
        self.subject.wait_for(self.starts)

    def check(self) -> None:
        waiting = [each.xid for each in self.server.open if each.waits]
        self.awake = {
            xid: self.awake.get(xid, 0) + 1
            for xid in waiting
            if self.rng.random() < 0.4 and self.awake.get(xid, 0) < CHECKS - 1
        }
        self.server.looks_awake = set(self.awake)
        self.now_s += 0.25
        for shape_id in self.subject.check(self.now_s):
            start = self.starts.pop(shape_id)
            invisible = [each for each in self.server.invisible if each.lsn is not None and each.lsn <= start]
            assert not invisible, f"{shape_id} starts after {start}, but {invisible} cannot be seen"
            self.flagged += 1

    def settle(self) -> None:
        """Everything that has committed becomes visible, and arrives; transactions stay open."""
        self.add()
        for each in self.server.invisible:
            self.server.end(each)
        if not self.server.is_role_privileged:
            for each in self.server.open:
                self.server.end(each)
        self.send(most=len(self.server.transactions) + 1)
        for _ in range(CHECKS):
            self.check()
        assert not self.starts
        assert not self.subject._waits


def test_a_start_is_visible_exactly_when_no_commit_up_to_it_is_invisible() -> None:
    """Over random histories: never before, also after restarts; and soon after, although transactions stay open."""
    flagged = left_open = 0
    for history in played(History, HISTORIES):
        flagged += history.flagged
        left_open += len(history.server.open)
    assert flagged > 10 * HISTORIES
    assert left_open > HISTORIES


def checked(subject: StartVisibility, times: int = CHECKS) -> list[str]:
    return [shape_id for _ in range(times) for shape_id in subject.check(0.0)]


def test_a_start_waits_until_everything_up_to_it_has_arrived() -> None:
    """A transaction still to come may be one that is invisible; a keepalive below the start says nothing about it."""
    server = Server()
    subject = StartVisibility(server, 1000)
    subject.wait_for({"a": 1500})
    subject.handle_keepalive(1500)
    assert checked(subject) == []
    subject.handle_keepalive(1501)
    assert checked(subject) == ["a"]
    assert server.flushes == [1500]


def test_a_start_is_inclusive() -> None:
    """A transaction that commits exactly there belongs to it, and what was confirmed before the connection is known."""
    server = Server()
    subject = StartVisibility(server, 1000)
    subject.wait_for({"confirmed": 999, "first": 1000, "before": 1499, "at": 1500})
    assert checked(subject) == ["confirmed"]
    transaction = server.begin()
    subject.handle_transaction(1500, transaction.xid % 2**32)
    assert checked(subject) == ["first", "before"]
    server.end(transaction)
    assert checked(subject, 1) == ["at"]


def test_a_transaction_in_progress_is_known_once_it_has_ended_or_arrived() -> None:
    """Without further checks: most transactions are short. One that commits later may wait for as long as it likes."""
    server = Server()
    ended, arrived = server.begin(), server.begin()
    subject = StartVisibility(server, 1000)
    subject.wait_for({"a": 999})
    assert checked(subject, 1) == []
    server.end(ended)
    server.commit(arrived, waits=True)
    subject.handle_transaction(1000, arrived.xid % 2**32)
    assert checked(subject, 1) == ["a"]


def test_a_commit_above_all_that_has_ended_is_not_missed() -> None:
    """A snapshot lists what is in progress only up to the last xid that has ended."""
    server = Server()
    transaction = server.begin(is_sent=False)
    server.commit(transaction, waits=True)
    assert server.snapshot().xip == ()
    subject = StartVisibility(server, server.wal_end)
    subject.wait_for({"a": server.wal_end - 1})
    assert checked(subject, 10) == []
    server.end(transaction)
    assert checked(subject) == ["a"]


def test_what_became_visible_is_forgotten() -> None:
    """One query for many transactions; only those that stay invisible are kept."""
    server = Server()
    subject = StartVisibility(server, server.wal_end)
    for number in range(3 * PRUNE_TRANSACTIONS):
        transaction = server.begin()
        server.commit(transaction, waits=False)
        assert transaction.lsn is not None
        subject.handle_transaction(transaction.lsn, transaction.xid % 2**32)
        if number % PRUNE_TRANSACTIONS != 7:
            server.end(transaction)
    assert server.queries == 3
    subject.prune()
    assert len(subject._committed) == 3
    assert checked(subject) == []
    assert server.queries == 4


def test_a_long_wait_is_logged_once_with_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    """The reason is the transaction, or that capture is behind."""
    server = Server()
    subject = StartVisibility(server, 1000)
    subject.wait_for({"a": 1010})
    subject.handle_transaction(1005, 42)
    server.begin()
    server.transactions[0].xid = 2**32 + 42
    with caplog.at_level(logging.WARNING):
        for seconds in (0, SLOW_S, SLOW_S + 0.1, SLOW_S + 5):
            subject.check(seconds)
        subject.handle_keepalive(1020)
        subject.wait_for({"b": 1010})
        for seconds in (20, 20 + SLOW_S + 1, 50):
            subject.check(seconds)
    behind = "capture has received up to 0/3ED, not yet 0/3F2"
    invisible = "transaction 42 at 0/3ED has committed and is waiting for a synchronous standby"
    assert caplog.messages == [
        f"start not visible yet shape_ids=a reason={behind}",
        f"start not visible yet shape_ids=b reason={invisible}",
    ]


def test_of_the_transactions_in_progress_the_reason_is_one_that_was_found_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other is just running, and has a lower xid."""
    server = Server()
    running, waiting = server.begin(is_sent=False), server.begin(is_sent=False)
    server.commit(waiting, waits=True)
    subject = StartVisibility(server, server.wal_end)
    subject.wait_for({"a": server.wal_end - 1})
    with caplog.at_level(logging.WARNING):
        subject.check(0)
        subject.check(SLOW_S + 0.1)
    (message,) = caplog.messages
    assert message.endswith(
        f"reason=transaction {waiting.xid % 2**32} may have committed and be waiting for a synchronous standby"
    )
    assert running.xid < waiting.xid
