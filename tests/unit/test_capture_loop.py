"""``CaptureLoop`` without a server or brokers: what it keeps from one connection to the next."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import pack, unpack
from threading import Event
from typing import Final

import pytest
import yaml

from flushtracker.capture import capture_loop
from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.errors import PostgresUnavailableError, SlotError
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry, SourceEntry
from flushtracker.events.stream_events import FragmentEvent
from flushtracker.postgres.replication_frames import Frame, Keepalive, WalData
from flushtracker.postgres.replication_stream import SystemIdentity
from flushtracker.postgres.slot import SlotFacts
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Commit, TableName
from flushtracker.wal.log_offset import LogOffset

DEADLINE_S: Final = 10.0
CONFIRMED: Final = 1000
PID: Final = 99
USERS_OID: Final = 7
CONFIG: Final = {
    "postgres": {"connection": {"host": "db"}, "slot": "s", "publication": "p"},
    "kafka": {
        "bootstrap_servers": "k:9092",
        "topics": {"fragments": "fragments", "flushes": "flushes", "shapes": "shapes", "shape_changes": "changes"},
    },
    "intervals": {"status": "10 ms", "acks": "10 ms", "keepalive": "10 ms", "shapes": "10 ms"},
}

BEGUN: Final = SourceEntry("7/1/s", LogOffset.just_before(CONFIRMED))


def transaction(lsn: int, xid: int) -> list[Frame]:
    """A transaction that inserts one row into ``users``."""
    messages = (
        b"B" + pack(">QqI", lsn, 0, xid),
        b"R" + pack(">I", USERS_OID) + b"public\0users\0d" + pack(">h", 1) + b"\1id\0" + pack(">Ii", 25, -1),
        b"I" + pack(">I", USERS_OID) + b"N" + pack(">hcI", 1, b"t", 1) + b"1",
        b"C\0" + pack(">QQq", lsn, lsn + 48, 0),
    )
    return [WalData(lsn, message) for message in messages]


def published(source: str, lsn: int, xid: int) -> bytes:
    """A transaction's only fragment, as another process published it."""
    at, commit = LogOffset(lsn, 0), Commit("2000-01-01T00:00:00.000000Z", lsn + 48)
    return FragmentEvent(source, xid, lsn, LogOffset(lsn - 1, 0), at, False, True, commit, ()).to_json().encode()  # noqa: FBT003  fields


def shape_entry(shape_id: str, starts_after: int = CONFIRMED, removed_at: int | None = None) -> ShapeEntry:
    definition = ShapeDefinition(shape_id, ("public", "users"), primary_key=("id",))
    removed = None if removed_at is None else LogOffset(removed_at, 0)
    return ShapeEntry("7/1/s", definition, USERS_OID, LogOffset(starts_after, 0), removed)


@dataclass
class Connection:
    """One connection as the test scripts it: its timeline, what the server sends, and then the end of it.

    ``until`` holds when the server may end the connection, and ``at_the_end`` runs just before that;
    ``while_reading_topics`` runs while capture reads them.
    """

    timeline: int
    frames: list[Frame] = field(default_factory=list)
    until: Callable[[], object] = lambda: True
    at_the_end: Callable[[], None] = lambda: None
    while_reading_topics: Callable[[], None] = lambda: None
    is_on_the_same_server: bool = True
    flushed: list[int] = field(default_factory=list)
    """The flush position of each status update."""

    def identify_system(self) -> SystemIdentity:
        return SystemIdentity("7", self.timeline, 5000, PID)

    def start(self, slot: str, publication: str) -> None:
        assert (slot, publication) == ("s", "p")

    def read(self) -> list[Frame]:
        frames, self.frames = self.frames, []
        if not frames and self.until():
            self.at_the_end()
            raise PostgresUnavailableError("the connection was cut")
        return frames

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.002))

    def send(self, status_update: bytes) -> None:
        self.flushed.append(unpack(">cQQQqB", status_update)[2])

    def close(self) -> None:
        pass


class World:
    """Everything outside of the loop: the server's connections in turn, the topics, and the acks by source."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shapes_file = tmp_path / "shapes.yaml"
        self.define()
        files = {"shapes": str(self._shapes_file), "acks": str(tmp_path / "acks")}
        (tmp_path / "capture.yaml").write_text(yaml.safe_dump(CONFIG | files))
        self.topics: dict[str, list[bytes]] = {"fragments": [], "flushes": [], "shapes": [], "changes": []}
        self.acks: dict[str, int] = {}
        self.ack_reads: list[str] = []
        self.is_closed = False
        self.stop = Event()
        self._waiting: list[Connection] = []
        self._current: Connection | None = None
        for name, replacement in {
            "connect": lambda _: self,
            "check_server": lambda _: None,
            "ServerTables": lambda *_: self,
            "read_slot": lambda *_: SlotFacts(CONFIRMED, CONFIRMED, None),
            "read_held_slot": lambda *_: self._read_held_slot(),
            "ReplicationStream": lambda _: self._next_connection(),
            "AckReader": lambda *_: self,
            "KafkaPublisher": lambda *_: Publisher(self),
            "TopicReader": lambda _: self,
            "_FIRST_DELAY_S": 0.001,
        }.items():
            monkeypatch.setattr(capture_loop, name, replacement)
        self.loop = CaptureLoop(load_capture_config(tmp_path / "capture.yaml"), self.stop)

    def capture(self, *connections: Connection) -> None:
        """Capture over these connections, then stop."""
        self._waiting = list(connections)
        self.loop.run()

    def define(self, *shape_ids: str) -> None:
        """Write the shapes file; all shapes are on ``users``."""
        shapes = [{"id": shape_id, "table": "public.users"} for shape_id in shape_ids]
        self._shapes_file.write_text(yaml.safe_dump({"shapes": shapes}))

    def register(self, *entries: RegistryEntry) -> None:
        """Add entries to the registry, as another process."""
        self.topics["shapes"] += [entry.to_json().encode() for entry in entries]

    def fragments(self) -> list[FragmentEvent]:
        return [FragmentEvent.from_json(value) for value in self.topics["fragments"]]

    def _next_connection(self) -> Connection:
        if not self._waiting:
            self.stop.set()
            raise PostgresUnavailableError("the test ends here")
        self._current = self._waiting.pop(0)
        return self._current

    def _read_held_slot(self) -> SlotFacts:
        if self._current is not None and not self._current.is_on_the_same_server:
            raise PostgresUnavailableError("the two connections lead to different servers")
        return SlotFacts(CONFIRMED, CONFIRMED, PID)

    # As the ordinary connection, the tables, the reader of topics and the reader of acks.

    exists = True

    def close(self) -> None:
        pass

    def require_publication(self) -> None:
        pass

    def require_open(self) -> None:
        pass

    def wal_end(self) -> int:
        return 5000

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, int]:
        return replace(definition, primary_key=("id",)), USERS_OID

    def ancestors(self, oid: int, xid: int) -> frozenset[TableName]:
        assert oid == USERS_OID
        assert xid
        return frozenset()

    def values(self, topic: str) -> Iterator[bytes]:
        if self._current is not None:
            self._current.while_reading_topics()
        return iter(list(self.topics[topic]))

    def tails(self, topic: str, key: str) -> Iterator[list[bytes]]:
        events = [value for value in self.topics[topic] if FragmentEvent.from_json(value).source == key]
        return iter([events])

    def last_ack(self, source: str) -> int | None:
        self.ack_reads.append(source)
        return self.acks.get(source)


class Publisher:
    """Confirms every record at once."""

    def __init__(self, world: World) -> None:
        self._world = world

    def publish(self, topic: str, key: str, value: str, on_confirmed: Callable[[], None] | None = None) -> None:
        assert key
        self._world.topics[topic].append(value.encode())
        if on_confirmed is not None:
            on_confirmed()

    def poll(self, timeout_s: float = 0.0) -> None:
        assert timeout_s == 0

    def flush(self, timeout_s: float) -> None:
        assert timeout_s > 0

    def close(self) -> None:
        self._world.is_closed = True


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """No source was captured yet."""
    return World(tmp_path, monkeypatch)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_after_a_failover_the_old_timelines_ack_never_moves_the_new_slot(world: World) -> None:
    """The old source is acknowledged far ahead; reading the topics of the new one takes longer than reading acks."""
    world.acks["7/1/s"] = 4000
    world.register(BEGUN)
    old = Connection(1, [Keepalive(4500, reply_requested=False)])
    old.until = lambda: old.flushed[-1:] == [4001]
    new = Connection(2, [Keepalive(4500, reply_requested=False)])

    def give_the_ack_reader_time() -> None:
        reads, updates = len(world.ack_reads), len(new.flushed)
        wait_until(lambda: len(new.flushed) > updates + 5 or len(world.ack_reads) > reads + 1)

    new.while_reading_topics = give_the_ack_reader_time
    new.until = lambda: (
        any(event.source == "7/2/s" for event in world.fragments()) and world.ack_reads[-3:] == (["7/2/s"] * 3)
    )
    world.capture(old, new)
    assert set(new.flushed) == {CONFIRMED}
    first_of_new = world.ack_reads.index("7/2/s")
    assert set(world.ack_reads[first_of_new:]) == {"7/2/s"}


def test_nothing_is_confirmed_over_a_stream_of_another_server(world: World) -> None:
    """The slot's position was read from the server before the failover, and is ahead of the new server's slot."""
    astray = Connection(1, transaction(2000, 50), is_on_the_same_server=False)
    world.capture(astray, Connection(1, transaction(2000, 50)))
    assert astray.flushed == []
    assert len(world.fragments()) == 1


def routed(world: World, lsn: int) -> list[list[str]]:
    """The shapes of each fragment published at ``lsn``, in the order of publishing."""
    return [[shape.shape_id for shape in event.shapes] for event in world.fragments() if event.lsn == lsn]


def test_a_shape_that_another_process_added_in_between_is_routed_to(world: World) -> None:
    """This process's own shapes file does not have it, and has not changed."""
    world.define("users")
    first, second = Connection(1, transaction(2000, 50)), Connection(1)

    def another_process_captures() -> None:
        if not second.frames:
            world.register(shape_entry("late", 2500))
            world.topics["fragments"].append(published("7/1/s", 3000, 60))
            second.frames = [*transaction(2000, 50), *transaction(3000, 60), *transaction(4000, 70)]

    first.at_the_end = another_process_captures
    world.capture(first, second)
    assert routed(world, 2000) == [["users"], ["users"]]
    assert routed(world, 3000)[-1] == ["late", "users"]
    assert routed(world, 4000) == [["late", "users"]]
    assert world.topics["flushes"] == []


def test_a_shape_that_another_process_removed_in_between_is_not_routed_to(world: World) -> None:
    """Its id stays in this process's shapes file; the tracker no longer waits for it."""
    world.define("users", "gone")
    first, second = (
        Connection(1, transaction(2000, 50)),
        Connection(1, [*transaction(2000, 50), *transaction(4000, 70)]),
    )
    first.at_the_end = lambda: world.register(shape_entry("gone", CONFIRMED - 1, removed_at=3000))
    world.capture(first, second)
    assert routed(world, 4000) == [["users"]]


def test_what_another_process_published_last_must_be_resent(world: World) -> None:
    """Otherwise the server has another history than the one that was published, even if ours was resent."""
    first, second = (
        Connection(1, transaction(2000, 50)),
        Connection(1, [*transaction(2000, 50), *transaction(4000, 70)]),
    )
    first.at_the_end = lambda: world.topics["fragments"].append(published("7/1/s", 3000, 60))
    with pytest.raises(SlotError, match=r"transaction 60 at 0/BB8 .* was published before, but the server sends"):
        world.capture(first, second)


def test_an_epoch_that_another_process_began_is_continued(world: World) -> None:
    """The old epoch's shapes and acks belong to a history that was given up."""
    first, second = Connection(1, transaction(2000, 50)), Connection(1, transaction(4000, 70))
    first.at_the_end = lambda: world.register(replace(BEGUN, source="7/1/s/1"))
    world.capture(first, second)
    assert [event.source for event in world.fragments()] == ["7/1/s", "7/1/s/1"]


def test_a_reconnect_keeps_the_shapes_if_nobody_changed_them(world: World) -> None:
    """A million shapes are not compiled again, and old removals are not published again."""
    world.register(shape_entry("users"), shape_entry("gone", removed_at=1500), BEGUN)
    world.define("users")
    first, second = Connection(1, transaction(2000, 50)), Connection(1, transaction(2000, 50))
    world.capture(first, second)
    assert routed(world, 2000) == [["users"], ["users"]]
    assert len(world.topics["flushes"]) == 1


@pytest.mark.parametrize("what", ["entry of a shape", "whole registry"])
def test_a_registry_that_was_lost_while_capture_runs_is_a_final_error(world: World, what: str) -> None:
    """Starting over with it would register the shapes a second time, from a later position."""
    world.define("users")
    first = Connection(1, transaction(2000, 50))

    def lose() -> None:
        world.topics["shapes"] = [BEGUN.to_json().encode()] if what == "entry of a shape" else []

    first.at_the_end = lose
    with pytest.raises(SlotError, match=r"registry no longer has .*shape users, which this process had registered"):
        world.capture(first, Connection(1))


def test_the_publisher_is_closed_after_a_final_error(world: World) -> None:
    """Otherwise it would go on sending in the background."""
    world.acks["7/1/s"] = 4000
    with pytest.raises(SlotError, match="no entry in the shape registry"):
        world.capture(Connection(1))
    assert world.is_closed


def test_a_wrong_path_of_the_ack_table_is_reported_at_the_start(
    world: World, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Once, although there are two connections: capture itself works, but its slot is never confirmed."""
    world.exists = False
    world.capture(Connection(1, transaction(2000, 50)), Connection(1, transaction(2000, 50)))
    warnings = [message for message in caplog.messages if "no ack table" in message]
    assert len(warnings) == 1
    assert f"acks={tmp_path / 'acks'};" in warnings[0]
