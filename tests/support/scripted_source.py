"""A source whose registry and catalog are scripted, for capture without a server."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from flushtracker.capture.shapes.delayed_shapes import DelayedShapes
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.events.registry_events import (
    RegistryEntry,
    ShapeEntry,
    parse_registry_entry,
)
from flushtracker.events.stream_events import FlushNotification
from flushtracker.events.topic_rules import Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.partition_map import TableKey
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.wal.changes import Column, Relation
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.fake_publisher import FakePublisher, source_entries
from tests.support.key_bindings import ID_KEY
from tests.support.quiet_server import QuietServer

ROOT, LSN = 7, 1000
NAME = ("public", "t")


def partition(number: int) -> PartitionBinding:
    return PartitionBinding(70 + number, ("public", f"t_{number}"), 1, "/5", published_by=("all tables",))


TABLE = TableBinding(
    ROOT,
    NAME,
    ID_KEY,
    (ColumnBinding(1, "id", 25, -1, 5),),
    (partition(1),),
    is_partitioned=True,
    published_by=("all tables",),
)


class ScriptedTables(QuietServer):
    """The catalog; ``after_resolve`` runs after each shape is completed from it."""

    def __init__(self) -> None:
        self.table = TABLE
        self.own: dict[int, TableBinding | None] = {}
        """The bindings of some tables, by OID; the others have ``table``."""
        self.reads = 0
        self.publication = "1/1"
        self.ends_at = LSN + 500
        self.xmax = 1_000_000
        self.standby = False
        self.emptied_at: int | None = None
        self.open = frozenset[int]()
        self.written: dict[int, frozenset[int]] = {}
        self.flushes = 0
        self.after_resolve: Callable[[], None] = lambda: None

    def wal_end(self) -> int:
        return self.ends_at

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        return [self._resolved(definition) for definition in definitions]

    def _resolved(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, TableBinding]:
        table = self.table
        self.after_resolve()
        return replace(definition, primary_key=("id",)), table

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        assert xid
        return frozenset([ROOT] if oid in {each.oid for each in self.table.partitions} else [])

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        self.reads += 1
        found = {oid: self.own.get(oid, self.table) for oid in oids}
        return {oid: table for oid, table in found.items() if table is not None}

    def empty_at(self, oid: int) -> int | None:
        assert oid == partition(2).oid
        return self.emptied_at

    def check_publication(self) -> str:
        return self.publication

    def snapshot(self) -> MvccSnapshot:
        return MvccSnapshot(min(self.open, default=self.xmax), self.xmax, tuple(sorted(self.open)))

    def is_standby(self) -> bool:
        return self.standby

    def in_progress(self) -> dict[int, bool]:
        return dict.fromkeys(self.open, False)

    def unnoticed_rows(self, _oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {}

    def writers(self, oids: Iterable[int]) -> dict[int, frozenset[int]]:
        return {oid: self.written[oid] for oid in oids if oid in self.written}

    def flush_commits(self) -> None:
        self.flushes += 1

    def emit_transaction(self) -> None:
        pass


class Source:
    """A source with shapes on one partitioned table."""

    def __init__(self) -> None:
        self.tables = ScriptedTables()
        self.publisher = FakePublisher()
        self.resume(SourceEntries(), LSN)
        self.subscriptions.begin_source()

    def resume(self, entries: SourceEntries, confirmed_lsn: int, delayed: DelayedShapes | None = None) -> None:
        """Continue from these entries, as another process, or as the same one with its delayed shapes."""
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        self.outbox = Outbox(self.publisher, topics, lambda _: None, EventLimit(1 << 20, 1 << 20))
        self.subscriptions = Subscriptions("7/1/s", entries, self.outbox, self.tables, confirmed_lsn, delayed)

    def define(self, *definitions: ShapeDefinition) -> None:
        self.subscriptions.apply_definitions(definitions, allow_removing=1)

    def published(self, shape_id: str) -> ShapeEntry:
        """The last entry of a shape that reached the registry."""
        entries = self.registry()
        return [each for each in entries if isinstance(each, ShapeEntry) and each.definition.id == shape_id][-1]

    def registry(self) -> list[RegistryEntry]:
        """The last entry of each key that reached the registry."""
        return self.publisher.registry()

    def registered(self) -> SourceEntries:
        """What another process reads."""
        return source_entries(self.registry())

    def joined(self) -> dict[TableKey, int]:
        """The partitions whose changes are routed as the table's, with when each joined."""
        self.subscriptions.router.check_invariants()
        return dict(self.subscriptions.router.partitions.of(ROOT))

    def drop_key(self) -> None:
        self.tables.table = replace(TABLE, keys=())


def removals(source: Source) -> list[FlushNotification]:
    """The removals that were published."""
    found = (FlushNotification.from_json(value) for topic, value in source.publisher.values if topic == "l")
    return [each for each in found if each.type == "removed"]


class KilledError(Exception):
    """The process was killed."""


class CompactedTopics(FakePublisher):
    """Keeps the last value of each key, as compaction does in the end. Kills the process before a record, if told."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[tuple[str, str], str] = {}
        self.records_left = 1_000_000

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None:
        if self.records_left == 0:
            raise KilledError
        self.records_left -= 1
        super().publish(topic, key, value, on_confirmed)
        if value is None:
            self.topics.pop((topic, str(key)), None)
        else:
            self.topics[topic, str(key)] = str(value)

    def registry(self) -> list[RegistryEntry]:
        return [parse_registry_entry(value) for (topic, _), value in self.topics.items() if topic == "s"]

    def flushes(self) -> set[tuple[str, str]]:
        """The shapes with flushes, and their types."""
        found = [json.loads(key) for topic, key in self.topics if topic == "l"]
        return {(shape_id, kind) for _, shape_id, kind, _ in found}


class LongLivedSource(Source):
    """A source whose capture is killed and restarted, and whose topics are compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher = self.topics = CompactedTopics()
        self.confirmed_lsn = LSN
        self.removed: dict[str, int] = {}
        """By definition: the shapes that were ever removed, with where."""
        self.resume(SourceEntries(), LSN)
        self.subscriptions.begin_source()

    def restart(self, behind: int = 0) -> None:
        """Start capture; the server may have lost, in a crash, what was confirmed last."""
        self.topics.records_left = 1_000_000
        self.resume(self.registered(), max(LSN, self.confirmed_lsn - behind))

    def live(self) -> list[str]:
        return [entry.definition.id for entry in self.subscriptions.entries.shapes if entry.removed_at is None]

    def note_removed(self) -> None:
        for entry in self.registry():
            if isinstance(entry, ShapeEntry) and entry.removed_at is not None:
                self.removed.setdefault(entry.definition.id, entry.removed_at.tx_offset)


def relation(partition: PartitionBinding) -> Relation:
    return Relation(partition.oid, *partition.table, "default", (Column("id", 25, is_key=True),))
