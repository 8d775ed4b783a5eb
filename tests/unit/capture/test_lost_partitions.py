"""Shapes lose the rows of partitions that are dropped or detached, which the server does not send."""

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.needed_messages import check_messages, require_messages
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.capture.wire.standby_status import StandbyStatus
from flushtracker.errors import ReconnectError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.events.topic_rules import Topics
from flushtracker.shape_log.shape_chain import chain_position, cursor_after
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import key_values, partition_prefix
from flushtracker.wal.changes import LogItem
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_publisher import FakePublisher, source_entries
from tests.support.fold import fold_items
from tests.support.partitioned_server import FIRST_LSN, NAME, Leaf, PartitionedServer, Sent

TOPICS = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
_EMPTY: Final = 2
"""The messages of a transaction without changes: its begin and its commit."""


class Broker(FakePublisher):
    """A crash of capture may lose any last records that are not confirmed."""

    durable = 0

    def confirm(self) -> None:
        super().confirm()
        self.durable = len(self.values)

    def lose(self, rng: Random) -> None:
        """Each topic loses any of its own last records."""
        rest = self.values[self.durable :]
        for name in sorted({topic for topic, _ in rest}):
            places = [place for place, (topic, _) in enumerate(rest) if topic == name]
            for place in reversed(places[rng.randint(0, len(places)) :]):
                del rest[place]
        self.values[self.durable :] = rest
        self.durable = len(self.values)
        self.unconfirmed.clear()


class Play:
    """A server, and capture with a shape of all rows and one that excludes most."""

    def __init__(self, seed: int = 0, *, has_messages: bool = True) -> None:
        self.rng = Random(seed)  # noqa: S311  reproducible
        self.always_has_messages = has_messages
        self.server = PartitionedServer()
        self.publisher = Broker()
        self.confirmed_lsn = FIRST_LSN
        self.published: list[int] = []
        self.keys = 0
        self.server.create()
        self._begin(SourceEntries())
        definitions = ShapeDefinition("all", NAME), ShapeDefinition("one", NAME, where="id IN ('k3', 'k7')")
        self.subscriptions.apply_definitions(definitions)
        self.subscriptions.begin_source()
        self.publisher.confirm()
        self.connect()

    def _begin(self, entries: SourceEntries) -> None:
        self.outbox = Outbox(self.publisher, TOPICS, self.published.append, EventLimit(1 << 20, 1 << 20))
        self.subscriptions = Subscriptions("7/1/s", entries, self.outbox, self.server, self.confirmed_lsn)

    def connect(self, *, with_messages: bool = False) -> None:
        """Connect again, after an ack of any transaction that was published."""
        self.has_messages = with_messages or self.always_has_messages
        confirmed = [lsn + 1 for lsn in self.published if lsn >= self.confirmed_lsn]
        self.confirmed_lsn = self.rng.choice([self.confirmed_lsn, *confirmed])
        self.subscriptions.connect(self.server, self.confirmed_lsn)
        with suppress(ReconnectError):
            require_messages(self.subscriptions.tables, self.confirmed_lsn, has_messages=self.has_messages)
            self._begin_stream()
            return
        self.has_messages = True
        self.subscriptions.connect(self.server, self.confirmed_lsn)
        self._begin_stream()

    def _begin_stream(self) -> None:
        self.subscriptions.tables.check()
        self.collector = Collector(
            "7/1/s", self.confirmed_lsn, self.subscriptions, self.outbox, FragmentConverter(2), None
        )
        self.next = 0
        self.rest: list[bytes] = []

    def restart(self) -> None:
        """Kill capture, and start another process with what the topics have."""
        self.publisher.lose(self.rng)
        self._begin(source_entries(self.publisher.registry()))
        self.connect()

    def receive(self, messages: int = 1_000_000) -> None:
        """Receive the next messages of the stream, as far as there are any."""
        for _ in range(messages):
            if not self.rest:
                while self.next < len(self.server.sent) and self.server.sent[self.next].lsn < self.confirmed_lsn:
                    self.next += 1
                if self.next == len(self.server.sent):
                    return
                sent, self.next = self.server.sent[self.next], self.next + 1
                if len(sent.messages) == _EMPTY and not self.has_messages:
                    self._pass(sent)
                    continue
                self.rest = list(sent.messages)
            self.collector.handle_message(0, self.rest.pop(0))
            self.subscriptions.router.check_invariants()

    def _pass(self, sent: Sent) -> None:
        """The server does not send a transaction without changes, and at times says that it is past it."""
        if self.rng.random() < 0.5:
            self.collector.handle_keepalive(sent.lsn + 48)
            self.collector.publish_keepalive("2000-01-01T00:00:00.000000Z")

    def settle(self) -> None:
        """Capture looks at the catalog, and receives everything."""
        self.receive()
        self.subscriptions.tables.check()
        self.receive()
        self.publisher.confirm()
        self.check_messages()
        self.receive()
        self.publisher.confirm()

    def check_messages(self) -> None:
        """Connect again if the connection should have messages, or need not."""
        try:
            check_messages(self.collector, StandbyStatus(self.confirmed_lsn), has_messages=self.has_messages)
        except ReconnectError as error:
            if error.with_messages or not self.always_has_messages:
                self.connect(with_messages=error.with_messages)

    def insert(self, leaf: Leaf) -> str:
        self.keys += 1
        self.server.insert((leaf, f"k{self.keys}"))
        return f"k{self.keys}"

    def reason(self, shape_id: str = "all") -> str | None:
        entries = self.publisher.registry()
        (entry,) = (each for each in entries if isinstance(each, ShapeEntry) and each.definition.id == shape_id)
        return entry.ended_because

    def items(self, shape_id: str) -> list[LogItem]:
        """A shape's items, each once; a resend must be the same, and there are no gaps."""
        found: dict[LogOffset, LogItem] = {}
        cursor: LogOffset | None = None
        for topic, value in self.publisher.values:
            event = ShapeChangesEvent.from_json(value) if topic == "c" else None
            if event is None or event.shape_id != shape_id:
                continue
            position = chain_position(event, cursor)
            assert position != "gap"
            for item in event.items:
                assert found.setdefault(item.offset, item) == item
            cursor = cursor_after(event) if position == "next" else cursor
        return [found[offset] for offset in sorted(found)]

    def check_fragments(self) -> None:
        """What the tracker has gone past, by a commit or a keepalive, gets no transaction that was not there before."""
        past, seen = 0, set[int]()
        for topic, value in self.publisher.values:
            if topic == "f":
                event = FragmentEvent.from_json(value)
                assert event.xid is None or event.lsn > past or event.lsn in seen
                seen.add(event.lsn)
                past = max(past, event.lsn)

    def check(self) -> None:
        """Compare both shapes with the table's partitions."""
        self.check_fragments()
        for shape_id in ("all", "one"):
            assert self.reason(shape_id) is None
            expected = {
                partition_prefix(NAME, leaf.oid) + key_values([key]): {"id": key}
                for leaf in self.server.partitions
                for key in leaf.rows
                if shape_id == "all" or key in {"k3", "k7"}
            }
            assert fold_items(self.items(shape_id)) == expected


@pytest.mark.parametrize("detaches", [False, True])
@pytest.mark.parametrize("how", ["running", "reconnected", "restarted"])
def test_shapes_lose_the_rows_of_a_partition_that_has_left(how: str, *, detaches: bool) -> None:
    """Also one that excludes them; also without any further change of a published table."""
    play = Play()
    (old,) = play.server.partitions
    new = play.server.create()
    for leaf in (old, new, old, new):
        play.insert(leaf)
    play.receive()
    (play.server.detach if detaches else play.server.drop)(old)
    if how != "running":
        (play.connect if how == "reconnected" else play.restart)()
    play.settle()
    play.check()
    assert [item.operation for item in play.items("all")] == ["insert"] * 4 + ["truncate_partition"]
    assert [item.operation for item in play.items("one")] == ["insert", "truncate_partition"]
    play.insert(new)
    play.settle()
    play.check()
    assert not play.subscriptions.router.tables.has_shapes_on(old.oid)


def test_a_loss_in_a_transaction_without_changes_is_recorded_before_that_is_published() -> None:
    """After a kill, only the record tells that transaction from those without changes that are not published."""
    play = Play(has_messages=False)
    (old,) = play.server.partitions
    play.server.drop(old)
    play.receive()
    play.subscriptions.tables.check()
    assert not play.has_messages
    play.publisher.log.clear()
    play.check_messages()
    assert play.has_messages
    play.receive()
    assert [line[:2] for line in play.publisher.log] == ["s ", "co", "c ", "c ", "f "]
    play.publisher.confirm()
    play.check()


def test_a_partition_that_returns_before_it_was_lost_ends_the_shapes() -> None:
    """Otherwise the rows that it gets then would be lost with it. Later, it is a partition like any other."""
    play = Play()
    (old,) = play.server.partitions
    play.insert(old)
    play.receive()
    play.server.detach(old)
    play.subscriptions.tables.check()
    play.server.truncate(old)
    play.server.attach(old)
    play.settle()
    assert play.reason() == "partition public.t_71 of table public.t was detached and attached again"
    play = Play()
    (old,) = play.server.partitions
    play.insert(old)
    play.server.detach(old)
    play.settle()
    play.confirmed_lsn = play.server.wal_end()
    play.connect()
    play.server.truncate(old)
    play.settle()
    play.server.attach(old)
    play.settle()
    play.insert(old)
    play.settle()
    play.check()


@pytest.mark.parametrize("has_messages", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_random_rotations_with_crashes_at_any_moment(seed: int, *, has_messages: bool) -> None:
    """Partitions come and go, in and out of capture's sight; at the end, each shape has the rows of the table.

    Also if a connection sends no transaction without changes, unless capture asks for these.
    """
    play = Play(seed, has_messages=has_messages)
    actions = [*_SERVER, *_CAPTURE]
    for _ in range(play.rng.randint(5, 60)):
        play.rng.choice(actions)(play)
    play.settle()
    play.check()


def _drop(play: Play) -> None:
    if leaves := list(play.server.leaves.values()):
        play.server.drop(play.rng.choice(leaves))


def _detach(play: Play) -> None:
    if leaves := play.server.partitions:
        play.server.detach(play.rng.choice(leaves))


def _truncate(play: Play) -> None:
    if leaves := list(play.server.leaves.values()):
        play.server.truncate(play.rng.choice(leaves))


def _insert(play: Play) -> None:
    """Insert rows into partitions and into detached tables; a key is unique in all partitions."""
    leaves, taken = list(play.server.leaves.values()), {key for leaf in play.server.partitions for key in leaf.rows}
    rows = []
    for key in play.rng.sample([f"k{number}" for number in range(10)], play.rng.randint(1, 3)):
        leaf = play.rng.choice(leaves) if leaves else None
        if leaf is not None and key not in (taken | leaf.rows if leaf.is_attached else leaf.rows):
            rows.append((leaf, key))
    if rows:
        play.server.insert(*rows)


_SERVER: Final[tuple[Callable[[Play], object], ...]] = (
    lambda play: play.server.create(),
    _drop,
    _detach,
    _truncate,
    *[_insert] * 4,
)
_CAPTURE: Final[tuple[Callable[[Play], object], ...]] = (
    *[lambda play: play.receive(play.rng.randint(1, 12))] * 4,
    lambda play: play.subscriptions.tables.check(),
    lambda play: play.publisher.confirm(),
    Play.check_messages,
    Play.connect,
    Play.restart,
)


def test_partitions_that_come_and_go_are_forgotten_once_their_loss_is_confirmed() -> None:
    """By capture, and by the registry's topic, whether capture runs or starts again; the table's shapes go on."""
    play = Play()
    (kept,) = play.server.partitions
    for _ in range(50):
        leaf = play.server.create()
        play.insert(leaf)
        play.settle()
        play.server.drop(leaf)
        play.settle()
    play.insert(kept)
    play.settle()
    assert len(play.subscriptions.entries.partitions) == 51
    before = play.subscriptions.entries
    confirmed_lsn = play.server.sent[-1].lsn + 1
    play.subscriptions.tables.forget_lost(play.confirmed_lsn)
    assert len(play.subscriptions.entries.partitions) == 51
    play.subscriptions.tables.forget_lost(confirmed_lsn)
    (entry,) = play.subscriptions.entries.partitions
    assert entry.binding.oid == kept.oid
    assert len(play.publisher.deleted) == 50
    assert before.are_same(play.subscriptions.entries, confirmed_lsn)
    assert not before.are_same(play.subscriptions.entries, play.confirmed_lsn)
    play.insert(kept)
    play.settle()
    play.check()
