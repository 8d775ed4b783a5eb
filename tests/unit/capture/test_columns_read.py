"""Only the columns that shapes read are decoded, and everything that is published is as if all were."""

from collections.abc import Iterable
from random import Random
from struct import pack

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.errors import DecodeError
from flushtracker.events.topic_rules import Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.table_shapes import ColumnUse
from flushtracker.wal.changes import Change, Relation, Row, change_bytes
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import RowMessage, decode
from flushtracker.wal.row_reader import RowReader
from tests.support import random_rows, row_messages
from tests.support.fake_publisher import FakePublisher
from tests.support.fake_tables import FakeTables
from tests.support.random_rows import TABLES


def seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311  repeatable


FIRST_LSN, STEP = 1000, 100
NAMES = tuple(column.name for column in TABLES[0].relation(seeded(0)).columns)


class RandomTables(FakeTables):
    """The catalog with the random tables; ``sent`` is where the last transaction sent has committed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = FIRST_LSN - 50
        types = {column.name: column.type_oid for column in TABLES[0].relation(seeded(0)).columns}
        columns = tuple(ColumnBinding(number, name, types[name], -1, 5) for number, name in enumerate(NAMES, 1))
        self.tables = {
            each.oid: TableBinding(
                each.oid, ("public", each.name), (KeyBinding(1, each.key),), columns, published_by=("all tables",)
            )
            for each in TABLES
        }

    def wal_end(self) -> int:
        return self.sent + 49

    def ancestors(self, oid: int, xid: int) -> frozenset[int]:
        assert oid in self.tables
        assert xid
        return frozenset()


class Capture:
    """Capture of random transactions; ``is_narrow``: as it is, and not with all columns decoded."""

    def __init__(self, *, is_narrow: bool) -> None:
        self.publisher, self.tables = FakePublisher(), RandomTables()
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        self.outbox = Outbox(self.publisher, topics, lambda _: None, EventLimit(1 << 20, 1 << 20))
        self.subscriptions = Subscriptions("7/1/s", SourceEntries(), self.outbox, self.tables, FIRST_LSN)
        self.subscriptions.begin_source()
        if not is_narrow:
            self.subscriptions.router.tables.columns_read = lambda _: None  # type: ignore[method-assign, assignment]
        self.connect()

    def connect(self) -> None:
        self.subscriptions.connect(self.tables, FIRST_LSN)
        self.collector = Collector("7/1/s", FIRST_LSN, self.subscriptions, self.outbox, FragmentConverter(2), None)

    def define(self, shapes: Iterable[ShapeDefinition]) -> None:
        self.subscriptions.apply_definitions(shapes, allow_removing=1_000)

    def handle(self, message: bytes, lsn: int) -> None:
        self.tables.sent = max(self.tables.sent, lsn)
        self.collector.handle_message(lsn, message)
        self.collector._converter.check_invariants()


def play(seed: int, *, is_narrow: bool) -> list[tuple[str, str | bytes]]:
    """What is published for random transactions, with shapes added and removed at any message, and resends."""
    rng, capture = seeded(seed), Capture(is_narrow=is_narrow)
    shapes: list[ShapeDefinition] = []
    first, described = 0, dict[int, Relation]()
    transactions: list[int] = []
    for number in range(20):
        transactions.append(rng.getrandbits(32))
        if rng.random() < 0.15:
            capture.connect()
            first, described = rng.randrange(len(transactions)), {}
        for index in range(first, len(transactions)):
            lsn, rows = FIRST_LSN + STEP * index, seeded(transactions[index])
            for at, message in enumerate(random_rows.transaction(rows, lsn, 700 + index, described)):
                if rng.random() < 0.15:
                    shapes = [shape for shape in shapes if rng.random() < 0.8]
                    shapes += [
                        rng.choice(TABLES).shape(rng, f"{number}-{index}-{at}-{new}")
                        for new in range(rng.randint(0, 2))
                    ]
                    capture.define(shapes)
                capture.handle(message, lsn)
        first = len(transactions)
    return capture.publisher.values


@pytest.mark.parametrize("seed", range(60))
def test_what_is_published_does_not_depend_on_what_is_decoded(seed: int) -> None:
    """Random rows, keys that change, tables described again, shapes that come and go in mid-transaction, resends."""
    assert play(seed, is_narrow=True) == play(seed, is_narrow=False)


def test_random_histories_publish_every_operation_and_end_shapes() -> None:
    """So that the comparison above is of something."""
    text = "".join(str(value) for seed in range(20) for _, value in play(seed, is_narrow=True))
    for operation in ("insert", "update", "delete", "truncate"):
        assert f'"{operation}"' in text
    for found in ("a large value that it left unchanged", "xé", "text without equivalent in UTF-8"):
        assert found in text


def rows_of(change: Change) -> list[Row | None]:
    return [getattr(change, name, None) for name in ("old", "new")]


def restricted(row: Row | None, columns: set[str]) -> Row | None:
    return None if row is None else {name: value for name, value in row.items() if name in columns}


@pytest.mark.parametrize("seed", range(200))
def test_a_narrow_row_is_the_whole_one_without_the_other_columns(seed: int) -> None:
    """For every kind of row, and with any columns, also none and all; the key's columns are always read."""
    rng = seeded(seed)
    table = rng.choice(TABLES)
    relation = table.relation(rng)
    columns = frozenset(rng.sample(NAMES, rng.randint(0, len(NAMES))))
    kept = {*columns, *(() if table.identity == b"f" else table.key)}
    whole, narrow = RowReader(relation), RowReader(relation)
    narrow.read_only(columns)
    messages = [decode(random_rows.row_message(rng, relation)) for _ in range(50)]
    for message in messages:
        assert isinstance(message, RowMessage)
        change, _ = whole.change(message, LogOffset(1, 0))
        found, size = narrow.change(message, LogOffset(1, 0))
        assert (type(found), found.relation, found.offset) == (type(change), relation, LogOffset(1, 0))
        assert rows_of(found) == [restricted(row, kept) for row in rows_of(change)]
        assert size == change_bytes(found)
        cut_off = RowMessage(
            message.operation, message.relation_id, message.data[: rng.randrange(5, len(message.data))]
        )
        try:
            narrow.change(cut_off, LogOffset(1, 0))
        except DecodeError:
            continue
        assert rows_of(narrow.change(cut_off, LogOffset(1, 0))[0]) == rows_of(found), "what is read was all there"
    narrow.read_only(None)
    assert isinstance(messages[0], RowMessage)
    assert narrow.change(messages[0], LogOffset(1, 0)) == whole.change(messages[0], LogOffset(1, 0))


@pytest.mark.parametrize("at", range(3))
def test_a_skipped_value_must_be_well_formed(at: int) -> None:
    """Otherwise the values after it would be others; only its text may be anything."""
    relation = TABLES[1].relation(seeded(1))
    reader, last = RowReader(relation), relation.columns[-1].name
    reader.read_only(frozenset([last]))
    values = [b"binary" if place == at else "x" for place in range(len(NAMES))]
    with pytest.raises(DecodeError, match=rf"^column {relation.columns[at].name} of public\.whole arrived in binary"):
        reader.change(row_messages.insert(relation.relation_id, values), LogOffset(1, 0))
    data = row_messages.insert(relation.relation_id, ["x"] * (len(NAMES) - 1) + ["last"]).data
    place = data.index(b"t") + 6 * at
    for damaged, expected in (
        (data[:place] + b"z" + data[place + 1 :], "a value's kind"),
        (data[: place + 1] + pack(">i", -1) + data[place + 5 :], "a value's length from 0 to"),
        (data[: place + 1] + pack(">i", 10_000) + data[place + 5 :], "a value's length from 0 to"),
        (data[: place + 3], "a value's length"),
        (data[:place], f"the value of column {relation.columns[at].name}"),
    ):
        with pytest.raises(DecodeError, match=expected):
            reader.change(RowMessage("Insert", relation.relation_id, damaged), LogOffset(1, 0))


@pytest.mark.parametrize("seed", range(20))
def test_the_columns_read_are_those_of_the_shapes_there_are(seed: int) -> None:
    """Whatever shapes come and go; one without ``columns`` or ``primary_key`` may read any."""
    rng, use, shapes = seeded(seed), ColumnUse(), list[Shape]()
    for number in range(60):
        if shapes and rng.random() < 0.5:
            use.remove(shapes.pop(rng.randrange(len(shapes))))
        else:
            definition = rng.choice(TABLES).shape(rng, str(number))
            shapes.append(Shape(definition))
            use.add(shapes[-1])
        used = [shape.used_columns for shape in shapes]
        expected = None if None in used else {name for columns in used for name in columns or ()}
        assert use.columns == expected
    use.add(Shape(ShapeDefinition("keyless", ("public", "plain"), columns=("a",))))
    assert use.columns is None
