"""What capture keeps of shapes and tables that have come and gone: nothing, but for what is listed with a reason."""

import logging
from collections.abc import Collection, Iterable
from struct import pack
from typing import Final

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.events.topic_rules import Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.fragment_converter import FragmentConverter
from tests.support.fake_publisher import FakePublisher
from tests.support.key_bindings import ID_KEY
from tests.support.large_containers import containers
from tests.support.quiet_server import QuietServer

SHAPES: Final = 14_000
AT_ONCE: Final = 1_000
MANY: Final = AT_ONCE * 3
"""A container with more entries has kept some of shapes, tables, partitions or types that are gone."""

KEPT: Final = {
    # An id of a shape that has ended stands for its next incarnation alone: its flushes, and its followers' positions,
    # would be taken for those of another shape. So the registry has each id for ever, in memory what its topic has, in
    # little more than its id.
    "ShapeRegistry._removed",
    # The topic has an entry of each table and partition, and what is in memory is compared with it at each connection.
    # A shape may be defined on a table again as long as the table is there, and then its partitions must continue
    # what was recorded. There is no entry yet that says that a table was dropped.
    "BoundTables._tables",
}


class ManyTables(QuietServer):
    """A catalog in which each table has one partition, and a column of a type of its own."""

    def __init__(self) -> None:
        self.lsn = 1000
        self.tables: dict[int, TableBinding] = {}

    def create(self, number: int) -> int:
        oid = 20_000 + 10 * number
        mood = TypeBinding(oid + 5, "public", f"mood{number}", "enum", labels=(EnumLabel(oid + 6, "ok", 700),))
        columns = (ColumnBinding(1, "id", 25, -1, version=700), ColumnBinding(2, "mood", mood.oid, -1, version=700))
        leaf = PartitionBinding(oid + 1, ("public", f"t{number}_1"), 1, "/742", published_by=("all tables",))
        self.tables[oid] = TableBinding(
            *(oid, ("public", f"t{number}"), ID_KEY, columns, (leaf,)),
            is_partitioned=True,
            published_by=("all tables",),
            types=(mood,),
        )
        return oid

    def wal_end(self) -> int:
        return self.lsn

    def resolve(self, definitions: Iterable[ShapeDefinition]) -> list[tuple[ShapeDefinition, TableBinding]]:
        by_name = {table.table: table for table in self.tables.values()}
        return [(each, by_name[each.table]) for each in definitions]

    def ancestors(self, oid: int, _xid: int) -> frozenset[int]:
        return frozenset({oid - 1} & self.tables.keys())

    def bindings(self, oids: Iterable[int]) -> dict[int, TableBinding]:
        return {oid: self.tables[oid] for oid in oids if oid in self.tables}

    def missing_relations(self, oids: Collection[int]) -> frozenset[int]:
        return frozenset(oid for oid in oids if oid - 1 not in self.tables)

    def empty_at(self, oid: int) -> int | None:
        raise AssertionError(oid)

    def check_publication(self) -> str:
        return "16400/700"

    def emit_transaction(self) -> None:
        pass


class Publisher(FakePublisher):
    """Keeps nothing of what was confirmed."""

    def confirm(self) -> None:
        super().confirm()
        for kept in (self.log, self.values, self.deleted):
            kept.clear()


class Capture:
    """Shapes on a table each, which are added, get a row, and are removed, with their tables."""

    def __init__(self) -> None:
        self.server, self.publisher = ManyTables(), Publisher()
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        outbox = Outbox(self.publisher, topics, lambda _: None, EventLimit(1 << 20, 1 << 20))
        self.subscriptions = Subscriptions("7/1/s", SourceEntries(), outbox, self.server, 1000)
        self.subscriptions.begin_source()
        self.collector = Collector("7/1/s", 1000, self.subscriptions, outbox, FragmentConverter(), None)

    def transaction(self, oids: Iterable[int]) -> None:
        """Insert a row into the partition of each table."""
        self.server.lsn += 1000
        lsn = self.server.lsn
        self.handle(b"B" + pack(">QqI", lsn, 0, 742))
        for oid in oids:
            names = f"public\0t{(oid - 20_000) // 10}_1\0d".encode()
            columns = b"\1id\0" + pack(">Ii", 25, -1) + b"\0mood\0" + pack(">Ii", oid + 5, -1)
            self.handle(b"R" + pack(">I", oid + 1) + names + pack(">h", 2) + columns)
            values = pack(">cI", b"t", 1) + b"1" + pack(">cI", b"t", 2) + b"ok"
            self.handle(b"I" + pack(">I", oid + 1) + b"N" + pack(">h", 2) + values)
        self.handle(b"C\0" + pack(">QQq", lsn, lsn + 48, 0))
        self.server.lsn += 100
        self.publisher.confirm()

    def handle(self, message: bytes) -> None:
        self.collector.handle_message(self.server.lsn, message)

    def check(self) -> None:
        """What runs at intervals."""
        self.subscriptions.tables.check()
        self.collector.check_relations(self.server)
        self.subscriptions.check_starts(0)
        self.subscriptions.removed.condense(self.server.lsn)
        self.publisher.confirm()

    def play(self, numbers: range) -> None:
        """Each shape's whole life: half of them end with their tables, the others are evicted or removed."""
        oids = [self.server.create(number) for number in numbers]
        shapes = [ShapeDefinition(f"s{number}", ("public", f"t{number}"), primary_key=("id",)) for number in numbers]
        self.subscriptions.apply_definitions(shapes)
        self.check()
        self.transaction(oids)
        self.check()
        for oid in oids[::2]:
            del self.server.tables[oid]
        self.check()
        for number in numbers[1::4]:
            assert self.subscriptions.evict(f"s{number}", "silent", number)
        self.subscriptions.apply_definitions([], allow_removing=len(shapes))
        for oid in oids[1::2]:
            del self.server.tables[oid]
        self.check()
        self.transaction([])
        self.collector.handle_keepalive(self.server.lsn)


def test_nothing_is_kept_of_shapes_and_tables_that_have_come_and_gone(caplog: pytest.LogCaptureFixture) -> None:
    """All maps, whatever they are keyed by, are found by a walk through all objects of a capture."""
    caplog.set_level(logging.CRITICAL)
    capture = Capture()
    for first in range(0, SHAPES, AT_ONCE):
        capture.play(range(first, first + AT_ONCE))
    assert capture.subscriptions.router.shape_count == 0
    assert [each.at_ms for each in capture.subscriptions.evictions] == [*range(SHAPES - 399, SHAPES, 4)]
    found = dict(containers(capture.collector, MANY))
    assert {name: size for name, size in found.items() if name not in KEPT} == {}
    assert found.keys() == KEPT
