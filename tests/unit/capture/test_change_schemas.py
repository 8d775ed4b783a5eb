"""Changes have the schema by which capture routes them, which is that of the registry once it has the same binding."""

from dataclasses import replace
from struct import pack
from typing import Any, Final

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import TableEntry, parse_registry_entry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import MAX_EVENT_BYTES, Topics
from flushtracker.serve.seen_shape import ShapeFacts
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shapes import event_router
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape_schema import shape_schema
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES, FragmentConverter
from tests.support.fake_publisher import FakePublisher, source_entries
from tests.support.fake_tables import LSN, OTHER, USERS, FakeTables
from tests.support.key_bindings import ID_KEY
from tests.support.row_messages import insert

SOURCE: Final = "7/1/s"
MOOD, MOODS, EMAIL = 16_400, 16_401, 16_402
TYPES: Final = (
    TypeBinding(MOOD, "public", "mood", "enum", labels=(EnumLabel(1, "ok", 9),)),
    TypeBinding(MOODS, "public", "_mood", "array", (MOOD,)),
    TypeBinding(EMAIL, "public", "email", "domain", (1043,)),
)
COLUMNS: Final = {"id": (23, -1), "moods": (MOODS, -1), "mail": (EMAIL, -1), "price": (1700, (10 << 16 | 2) + 4)}
ROW: Final = ("1", "{ok}", "a@b", "1.50")
NAME: Final = ("public", "users")
TABLE: Final = TableBinding(
    USERS,
    NAME,
    ID_KEY,
    tuple(ColumnBinding(number, name, *found, version=700) for number, (name, found) in enumerate(COLUMNS.items(), 1)),
    published_by=("all tables",),
    types=TYPES,
)
ADDED: Final = replace(TABLE, columns=(*TABLE.columns, ColumnBinding(5, "note", 25, -1, version=800)))
LABELLED: Final = replace(
    TABLE, types=(replace(TYPES[0], labels=(*TYPES[0].labels, EnumLabel(2, "sad", 10))), *TYPES[1:])
)
SHAPES: Final = (ShapeDefinition("all", NAME), ShapeDefinition("some", NAME, ("moods",), primary_key=("id",)))


class Capture:
    """Captures transactions of ``users``, whose binding is ``table`` in the catalog."""

    def __init__(self) -> None:
        self.tables, self.publisher = FakeTables(), FakePublisher()
        self.alter(TABLE)
        self.lsn = LSN
        self.start()
        self.subscriptions.apply_definitions(SHAPES)
        self.subscriptions.begin_source()

    def alter(self, table: TableBinding) -> None:
        self.tables.tables[USERS] = table

    def start(self) -> None:
        """Continue from the registry, as another process."""
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        limit = EventLimit(MAX_EVENT_BYTES, DEFAULT_MAX_BATCH_BYTES)
        self.outbox = Outbox(self.publisher, topics, lambda _: None, limit)
        entries = source_entries(self.publisher.registry())
        self.subscriptions = Subscriptions(SOURCE, entries, self.outbox, self.tables, self.lsn)
        self.connect()

    def connect(self) -> None:
        self.subscriptions.connect(self.tables, self.lsn)
        self.collector = Collector(SOURCE, self.lsn, self.subscriptions, self.outbox, FragmentConverter(1), None)

    def begin(self) -> None:
        self.handle(b"B" + pack(">QqI", self.lsn, 0, 742), self.relation())

    def relation(self) -> bytes:
        columns = self.tables.tables[USERS].columns
        described = (b"\0" + each.name.encode() + b"\0" + pack(">Ii", each.type_oid, -1) for each in columns)
        return b"R" + pack(">I", USERS) + b"public\0users\0d" + pack(">h", len(columns)) + b"".join(described)

    def insert(self, *more: str) -> None:
        self.handle(insert(USERS, (*ROW, *more)).data)

    def commit(self) -> None:
        self.handle(b"C\0" + pack(">QQq", self.lsn, self.lsn + 48, 0))
        self.lsn += 1000

    def capture(self, *more: str) -> None:
        """A transaction of one row."""
        self.begin()
        self.insert(*more)
        self.commit()

    def handle(self, *messages: bytes) -> None:
        for message in messages:
            self.collector.handle_message(self.lsn, message)

    def schemas(self, shape_id: str) -> list[str | None]:
        """The schemas of the shape's changes so far."""
        found = [
            ChangeColumns.of(ShapeChangesEvent.from_json(value))
            for topic, value in self.publisher.values
            if topic == "c"
        ]
        return [each.schema for each in found if each.shape_id == shape_id]

    def registered(self, shape_id: str) -> str | None:
        """The schema of the shape as a server finds it in the registry that was published."""
        registry = Registry.of(self.publisher.registry())
        entry = registry.shape(SOURCE, shape_id)
        assert entry is not None
        table = registry.table_of(entry)
        return ShapeFacts.of(FoundShape(1, SOURCE, shape_id, None, None, entry, table), "table").schema_digest


def test_changes_have_the_schema_of_the_registry() -> None:
    """With enums, arrays, domains and modifiers, and for each shape that of its own columns."""
    capture = Capture()
    capture.capture()
    found = {shape_id: capture.schemas(shape_id) for shape_id in ("all", "some")}
    assert found == {shape_id: [capture.registered(shape_id)] for shape_id in found}
    assert len({str(schemas) for schemas in found.values()}) == 2


@pytest.mark.parametrize("table", [ADDED, LABELLED], ids=["column added", "label added"])
def test_new_binding_is_in_the_registry_before_changes_have_its_schema(table: TableBinding) -> None:
    """A server that has not read it yet knows the new schema as another one, whichever it sees first."""
    capture = Capture()
    capture.capture()
    before = capture.registered("all")
    capture.alter(table)
    capture.connect()
    capture.capture(*["x"] * (len(table.columns) - len(TABLE.columns)))
    after = capture.registered("all")
    assert after != before
    assert capture.schemas("all") == [before, after]
    records = [(topic, str(value)) for topic, value in capture.publisher.values if topic in {"s", "c"}]
    rebound = max(at for at, (topic, value) in enumerate(records) if topic == "s" and _is_table(value))
    changed = min(at for at, (topic, value) in enumerate(records) if topic == "c" and f'"schema":"{after}"' in value)
    assert rebound < changed


def _is_table(value: str) -> bool:
    entry = parse_registry_entry(value)
    return isinstance(entry, TableEntry) and entry.binding.oid == USERS


def test_table_altered_inside_a_transaction() -> None:
    """Each fragment has the schema by which it is routed, also the one that only says that the shape's part ends."""
    capture = Capture()
    other = b"R" + pack(">I", OTHER) + b"public\0other\0d" + pack(">h", 1) + b"\1id\0" + pack(">Ii", 25, -1)
    capture.subscriptions.apply_definitions([*SHAPES, ShapeDefinition("other", ("public", "other"))])
    capture.lsn += 1000
    before = capture.registered("all")
    capture.begin()
    capture.insert()
    capture.handle(other, insert(OTHER, ("1",)).data)
    capture.alter(ADDED)
    capture.subscriptions.tables.check()
    capture.commit()
    after = capture.registered("all")
    assert capture.schemas("all") == [before, after]
    last = [ShapeChangesEvent.from_json(value) for topic, value in capture.publisher.values if topic == "c"]
    assert [len(each.items) for each in last if each.shape_id == "all"] == [1, 0]
    assert after != before


def test_schema_is_the_same_after_a_restart() -> None:
    """Another process computes it from the registry alone."""
    capture = Capture()
    capture.capture()
    capture.start()
    capture.capture()
    (schema,) = set(capture.schemas("all"))
    assert schema == capture.registered("all")


def test_next_incarnation_has_a_schema_from_its_first_change() -> None:
    """Also if it replaces the only shape of its table."""
    capture = Capture()
    capture.subscriptions.apply_definitions([SHAPES[0]])
    again = replace(SHAPES[0], columns=("mail",), primary_key=("id",), incarnation=2)
    capture.subscriptions.apply_definitions([again])
    capture.subscriptions.tables.check()
    capture.lsn += 1000
    capture.capture()
    assert capture.schemas("all") == [capture.registered("all")]
    assert capture.registered("all") is not None


def test_schema_is_computed_once_for_each_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each event, and not again for a table without other columns or types."""
    computed: list[str] = []
    real = shape_schema

    def counted(definition: ShapeDefinition, table: TableBinding) -> Any:
        computed.append(definition.id)
        return real(definition, table)

    monkeypatch.setattr(event_router, "shape_schema", counted)
    capture = Capture()
    for _ in range(5):
        capture.capture()
    assert sorted(computed) == ["all", "some"]
    partitions = capture.tables.later[USERS].partitions
    capture.alter(replace(TABLE, partitions=partitions))
    capture.subscriptions.tables.check()
    capture.capture()
    assert sorted(computed) == ["all", "some"]
    capture.alter(replace(ADDED, partitions=partitions))
    capture.connect()
    capture.subscriptions.tables.check()
    capture.capture("x")
    assert sorted(computed) == ["all", "all", "some", "some"]


def test_bindings_of_tables_without_shapes_are_forgotten() -> None:
    """By the next check, as their types are."""
    capture = Capture()
    other = ShapeDefinition("other", ("public", "other"))
    capture.subscriptions.apply_definitions([*SHAPES, other])
    tables = capture.subscriptions.router.tables
    capture.subscriptions.tables.check()
    assert ({*tables._bindings}, {*tables._types}) == ({USERS, OTHER}, {MOOD, MOODS, EMAIL})
    capture.subscriptions.apply_definitions([other], allow_removing=2)
    capture.subscriptions.tables.check()
    assert ({*tables._bindings}, {*tables._types}) == ({OTHER}, set())
