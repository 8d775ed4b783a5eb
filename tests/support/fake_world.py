"""``FakeWorld``: what is around ``CaptureLoop``, in memory: a server, topics and an ack table.

A test scripts the server's connections one by one. Only the loop itself, its status updates and its shapes are real.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import pack, unpack
from threading import Event
from types import MappingProxyType
from typing import Any, Final

import pytest
import yaml

from flushtracker.capture import capture_loop
from flushtracker.capture.capture_config import load_capture_config
from flushtracker.capture.capture_loop import CaptureLoop
from flushtracker.errors import FlushtrackerError, PostgresUnavailableError
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import (
    RegistryEntry,
    ShapeEntry,
    SourceEntry,
    TableEntry,
    parse_registry_entry,
)
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.events.topic_rules import Topics
from flushtracker.postgres.replication_frames import Frame, XLogData
from flushtracker.postgres.replication_stream import SystemIdentity
from flushtracker.postgres.slot import SlotFacts
from flushtracker.postgres.upgrade_seal import UpgradeSeal
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.wal.changes import Commit
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.timeline_history import TimelineHistory
from tests.support.config_file import merged, write_config
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import QuietServer

CONFIRMED: Final = 1000
PID: Final = 99
USERS_OID: Final = 7
USERS: Final = TableBinding(
    USERS_OID, ("public", "users"), ID_KEY, (ColumnBinding(1, "id", 25, -1, 700),), published_by=("all tables",)
)
INTERVALS: Final = {"status": "10 ms", "acks": "10 ms", "keepalive": "10 ms", "shapes": "10 ms"}
CONFIG: Final[Mapping[str, Any]] = {
    "postgres": {"host": "db"},
    "kafka": "k:9092",
    "storage": "data",
    "capture": {"slot": "s", "publication": "p", "intervals": INTERVALS},
    "status": False,
}

_TOPICS: Final = Topics("fragments", "flushes", "shapes", "changes")
PUBLICATION: Final = "1/1"
BEGUN: Final = SourceEntry("7/1/s", LogOffset.just_before(CONFIRMED), PUBLICATION)


def transaction(lsn: int, xid: int) -> list[Frame]:
    """A transaction that inserts one row into ``users``."""
    messages = (
        b"B" + pack(">QqI", lsn, 0, xid),
        b"R" + pack(">I", USERS_OID) + b"public\0users\0d" + pack(">h", 1) + b"\1id\0" + pack(">Ii", 25, -1),
        b"I" + pack(">I", USERS_OID) + b"N" + pack(">hcI", 1, b"t", 1) + b"1",
        b"C\0" + pack(">QQq", lsn, lsn + 48, 0),
    )
    return [XLogData(lsn, message) for message in messages]


def messages_alone(lsn: int, xid: int) -> list[Frame]:
    """A transaction that changes nothing, and has a message that is not UTF-8."""
    messages = b"B" + pack(">QqI", lsn, 0, xid), b"M\1\xff", b"C\0" + pack(">QQq", lsn, lsn + 48, 0)
    return [XLogData(lsn, message) for message in messages]


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

    ``until`` holds when the server may end the connection, and ``at_the_end`` runs just before that; ``after_frames``
    runs at each read that finds nothing more, and ``while_reading_topics`` while capture reads them.
    """

    timeline: int
    frames: list[Frame] = field(default_factory=list)
    until: Callable[[], object] = lambda: True
    at_the_end: Callable[[], None] = lambda: None
    after_frames: Callable[[], None] = lambda: None
    while_reading_topics: Callable[[], None] = lambda: None
    is_on_the_same_server: bool = True
    wal_lsn: int = 1_000_000
    switches: tuple[tuple[int, int], ...] = ()
    system_id: str = "7"
    has_messages: bool = False
    codec: str = "utf-8"
    flushed: list[int] = field(default_factory=list)
    """The flush position of each status update."""

    def identify_system(self) -> SystemIdentity:
        return SystemIdentity(self.system_id, self.timeline, self.wal_lsn, PID)

    def timeline_history(self, timeline: int) -> TimelineHistory:
        assert timeline == self.timeline
        return TimelineHistory(timeline, self.switches)

    def start(self, slot: str, publication: str, *, messages: bool) -> None:
        assert (slot, publication) == ("s", "p")
        self.has_messages = messages

    def read(self) -> list[Frame]:
        frames, self.frames = self.frames, []
        if not frames:
            self.after_frames()
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


class FakeWorld(QuietServer):
    """Everything outside of the loop: the server's connections in turn, the topics, and the acks by source."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = tmp_path
        self.where: dict[str, str] = {}
        """The condition of each shape that has one, in every process's file."""
        self.define()
        self.topics: dict[str, list[bytes]] = {"fragments": [], "flushes": [], "shapes": [], "changes": []}
        self.acks: dict[str, int] = {}
        self.deleted: dict[str, int] = {}
        """By topic, how many records were deleted at its beginning."""
        self.ack_reads: list[str] = []
        self.wal_ends_at = 5000
        self.lsns: list[int] = []
        self.is_queueing = False
        """Whether records wait for a flush."""
        self.queued: list[Callable[[], None]] = []
        self.partition: PartitionBinding | None = None
        """The partition that the table has."""
        self.while_reading_ends: Callable[[], object] = lambda: None
        self.before_delivery: Callable[[str], object] = lambda _: None
        """Runs before a record is added to a topic, which it is given."""
        self.after_look: Callable[[], object] = lambda: None
        """Runs after a fence has read the registry."""
        self.confirmed_lsn = CONFIRMED
        self.seal: UpgradeSeal | None = None
        """The seal of an upgrade that the server has."""
        self.heartbeats = 0
        self.is_closed = False
        self.abandoned: list[FlushtrackerError] = []
        """With what the publisher was made to discard what was queued."""
        self.stop = Event()
        self._waiting: list[Connection] = []
        self._current: Connection | None = None
        for name, replacement in {
            "connect": lambda _: self,
            "check_server": lambda _: None,
            "ServerTables": lambda *_, **__: self,
            "read_slot": lambda *_: SlotFacts(CONFIRMED, None),
            "read_held_slot": lambda *_: self._read_held_slot(),
            "read_seal": lambda *_, **__: self.seal,
            "drop_seals": lambda *_: None,
            "ReplicationStream": lambda _: self._next_connection(),
            "AckReader": self._ack_reader,
            "KafkaPublisher": lambda *_: Publisher(self),
            "TopicReader": lambda _: self,
            "_FIRST_DELAY_S": 0.001,
        }.items():
            monkeypatch.setattr(capture_loop, name, replacement)
        self.loop = self._new_loop("first")

    def capture(self, *connections: Connection) -> None:
        """Capture over these connections, then stop."""
        self._waiting = list(connections)
        self.loop.run()

    def capture_as_another_process(self, shape_ids: Iterable[str], *connections: Connection) -> None:
        """A new process captures with these shapes, and ends; meanwhile the first one is not connected."""
        first = (self.stop, self._waiting, self._current)
        self.stop, self._waiting = Event(), list(connections)
        self._write_shapes("other", shape_ids)
        try:
            self._new_loop("other").run()
        finally:
            self.stop, self._waiting, self._current = first

    def start_again(self) -> None:
        """The first process was killed, and is started again."""
        self.stop = Event()
        self.loop = self._new_loop("first")

    def start_new_epoch(self) -> None:
        """The first process begins a new epoch."""
        self.loop = self._new_loop("first", new_epoch=True)

    def start_upgraded(self, upgraded_from: str) -> None:
        """The first process is started with ``--upgraded-from``."""
        self.stop = Event()
        self.loop = self._new_loop("first", upgraded_from=upgraded_from)

    def start_draining(self) -> None:
        """The first process is started with ``--before-upgrade``, and with heartbeats configured."""
        self.stop = Event()
        self.loop = self._new_loop("first", before_upgrade=True, intervals={"heartbeat": "10 ms"})

    def _new_loop(self, name: str, intervals: Mapping[str, str] = MappingProxyType({}), **starts: Any) -> CaptureLoop:
        files = {"shapes": str(self._folder / f"{name}-shapes.yaml"), "storage": str(self._folder)}
        settings = merged(CONFIG, {**files, "capture": {"intervals": intervals}})
        config = load_capture_config(write_config(self._folder / f"{name}.yaml", settings))
        config = replace(config, kafka=replace(config.kafka, topics=_TOPICS))
        return CaptureLoop(config, self.stop, **starts)

    def _write_shapes(self, name: str, shape_ids: Iterable[str]) -> None:
        shapes = [
            {"id": shape_id, "table": "public.users"}
            | ({"where": self.where[shape_id]} if shape_id in self.where else {})
            for shape_id in shape_ids
        ]
        new = self._folder / "new.yaml"
        new.write_text(yaml.safe_dump({"shapes": shapes}))
        new.rename(self._folder / f"{name}-shapes.yaml")

    def define(self, *shape_ids: str) -> None:
        """Write the first process's shapes file; all shapes are on ``users``."""
        self._write_shapes("first", shape_ids)

    def register(self, *entries: RegistryEntry) -> None:
        """Add entries to the registry, as another process, with the table of the shapes."""
        table = [TableEntry("7/1/s", USERS)] if any(isinstance(entry, ShapeEntry) for entry in entries) else []
        self.topics["shapes"] += [entry.to_json().encode() for entry in (*table, *entries)]

    def fragments(self) -> list[FragmentEvent]:
        return [FragmentEvent.from_json(value) for value in self.topics["fragments"]]

    def routed(self, lsn: int) -> list[list[str]]:
        """The shapes of each fragment published at ``lsn``, in the order of publishing."""
        return [[shape.shape_id for shape in event.shapes] for event in self.fragments() if event.lsn == lsn]

    def _next_connection(self) -> Connection:
        if not self._waiting:
            self.stop.set()
            raise PostgresUnavailableError("the test ends here")
        self._current = self._waiting.pop(0)
        return self._current

    def _read_held_slot(self) -> SlotFacts:
        if self._current is not None and not self._current.is_on_the_same_server:
            raise PostgresUnavailableError("the two connections lead to different servers")
        return SlotFacts(self.confirmed_lsn, PID)

    # As the ordinary connection, the tables, the reader of topics and the reader of acks.

    exists = True

    def close(self) -> None:
        pass

    standby_timeline: int | None = None

    def require_timeline(self) -> None:
        pass

    def hold_slot(self, stream_pid: int) -> None:
        pass

    def warn_of_refused_changes(self) -> None:
        pass

    def check_publication(self) -> str:
        return PUBLICATION

    def wal_sender_timeout_s(self) -> float:
        return 60.0

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        assert set(oids) <= {USERS_OID}
        partitions = () if self.partition is None else (self.partition,)
        return dict.fromkeys(oids, replace(USERS, partitions=partitions))

    def empty_at(self, oid: int) -> int | None:
        raise AssertionError(oid)

    def emit_transaction(self) -> None:
        pass

    def require_open(self) -> None:
        pass

    def emit_heartbeat(self) -> bool:
        self.heartbeats += 1
        return True

    def wal_end(self) -> int:
        return self.wal_ends_at

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        return [self._resolved(definition) for definition in definitions]

    def _resolved(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, TableBinding]:
        return replace(definition, primary_key=("id",)), USERS

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        assert oid == USERS_OID
        assert xid
        return frozenset()

    def values(self, topic: str) -> Iterator[bytes]:
        if self._current is not None:
            self._current.while_reading_topics()
        return iter(list(self.topics[topic]))

    def ends(self, topic: str) -> dict[int, int]:
        if topic == "fragments":
            # After the registry.
            self.while_reading_ends()
        return {0: len(self.topics[topic])}

    def begins(self, topic: str) -> dict[int, int]:
        return {0: self.deleted.get(topic, 0)}

    def since(self, topic: str, starts: Mapping[int, int]) -> tuple[list[bytes], dict[int, int]]:
        values = list(self.topics[topic])
        self.after_look()
        return values[starts.get(0, 0) :], {0: len(values)}

    def lasts(self, topic: str, is_wanted: Callable[[bytes, bytes], bool], starts: Sequence[int]) -> list[bytes]:
        events: Iterable[FragmentEvent | ShapeChangesEvent] = (
            FragmentEvent.from_json(value) if topic == "fragments" else ShapeChangesEvent.from_json(value)
            for value in self.topics[topic][(*starts, 0)[0] :]
        )
        records = [(record_of(event).key.encode(), event.to_json().encode()) for event in events]
        return [value for key, value in records if is_wanted(key, value)][-1:]

    def tails(self, topic: str, key: str) -> Iterator[list[bytes]]:
        events = [value for value in self.topics[topic] if FragmentEvent.from_json(value).source == key]
        return iter([events])

    def _ack_reader(self, uri: str, options: dict[str, str]) -> "FakeWorld":
        assert (uri, options) == (str(self._folder / "acks"), {})
        return self

    def sources(self) -> list[str]:
        return list(self.acks)

    def last_ack(self, source: str) -> int | None:
        self.ack_reads.append(source)
        return self.acks.get(source)


class Publisher:
    """Confirms every record at once."""

    pending_bytes = 0
    gate: Callable[[], bool] | None = None

    def __init__(self, world: FakeWorld) -> None:
        self._world = world

    def publish(self, topic: str, key: str, value: str | None, on_confirmed: Callable[[], None] | None = None) -> None:
        assert key
        while self.gate is not None and not self.gate():
            time.sleep(0.001)
        if self._world.is_queueing:
            self._world.queued.append(lambda: self._deliver(topic, value, on_confirmed))
        else:
            self._deliver(topic, value, on_confirmed)

    def _deliver(self, topic: str, value: str | None, on_confirmed: Callable[[], None] | None) -> None:
        if value is not None:
            self._world.before_delivery(topic)
            self._world.topics[topic].append(value.encode())
        if on_confirmed is not None:
            on_confirmed()

    def poll(self, timeout_s: float = 0.0) -> None:
        assert timeout_s == 0

    def flush(self, timeout_s: float) -> None:
        assert timeout_s > 0
        queued, self._world.queued = self._world.queued, []
        for deliver in queued:
            deliver()

    def abandon(self, failure: FlushtrackerError) -> None:
        self._world.abandoned.append(failure)

    def close(self) -> None:
        self._world.is_closed = True


def source_entry(world: FakeWorld) -> SourceEntry:
    entries = map(parse_registry_entry, world.topics["shapes"])
    return [entry for entry in entries if isinstance(entry, SourceEntry)][-1]


def land_late(world: FakeWorld, late: SourceEntry, log: pytest.LogCaptureFixture) -> None:
    """Once the next capture has claimed the source, and publishes or waits, a claim lands that was made before."""
    before = len(world.fragments())

    def land() -> None:
        if len(world.fragments()) > before or "waiting until no other capture publishes" in log.text:
            world.after_look = lambda: None
            world.register(late)

    world.after_look = land


class LiveConnection(Connection):
    """Sends the whole WAL, since nothing is ever acknowledged; then ``commits`` more transactions, until it is cut."""

    def __init__(self, world: FakeWorld, commits: int, at_the_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(1, at_the_end=at_the_end)
        self._world = world
        self._commits = commits
        self._has_sent_all = False

    def read(self) -> list[Frame]:
        if not self._has_sent_all:
            self._has_sent_all = True
            return [frame for lsn in self._world.lsns for frame in transaction(lsn, xid=lsn)]
        if self._commits == 0:
            self.at_the_end()
            raise PostgresUnavailableError("the connection was cut")
        self._commits -= 1
        lsn = self._world.wal_ends_at + 50
        self._world.wal_ends_at = lsn + 50
        self._world.lsns.append(lsn)
        return transaction(lsn, xid=lsn)
