"""The collector without a server or a broker: which rows it decodes, and when it cannot."""

import re
from dataclasses import replace
from struct import pack
from typing import Any

import pytest

from flushtracker.capture.collector import Collector
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.capture.wire.event_limit import EventLimit
from flushtracker.capture.wire.outbox import Outbox
from flushtracker.errors import DecodeError, ReconnectError
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.events.topic_rules import MAX_EVENT_BYTES, Topics
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.fragment_converter import DEFAULT_MAX_BATCH_BYTES, FragmentConverter
from tests.support.fake_publisher import FakePublisher
from tests.support.fake_tables import LSN, OTHER, PARTITION, USERS, FakeTables
from tests.support.key_bindings import ID_KEY


def begin(lsn: int, xid: int) -> bytes:
    return b"B" + pack(">QqI", lsn, 0, xid)


def commit(lsn: int) -> bytes:
    return b"C\0" + pack(">QQq", lsn, lsn + 48, 0)


def relation(oid: int, name: str, type_oid: int = 25) -> bytes:
    name_and_identity = f"public\0{name}\0d".encode()
    return b"R" + pack(">I", oid) + name_and_identity + pack(">h", 1) + b"\1id\0" + pack(">Ii", type_oid, -1)


def insert(oid: int, value: bytes = b"1") -> bytes:
    return b"I" + pack(">I", oid) + b"N" + pack(">hcI", 1, b"t", len(value)) + value


class Capture:
    """A collector with shapes, by default one on ``users``; ``published`` has the commit LSNs that were published."""

    def __init__(self, *shapes: ShapeDefinition, tables: FakeTables | None = None) -> None:
        self.published: list[int] = []
        topics = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s")
        self.publisher = FakePublisher()
        limit = EventLimit(MAX_EVENT_BYTES, DEFAULT_MAX_BATCH_BYTES)
        outbox = Outbox(self.publisher, topics, self.published.append, limit)
        self.subscriptions = Subscriptions("7/1/s", SourceEntries(), outbox, tables or FakeTables(), LSN)
        self.subscriptions.apply_definitions(shapes or [ShapeDefinition("users", ("public", "users"))])
        self.subscriptions.begin_source()
        self.collector = Collector("7/1/s", LSN, self.subscriptions, outbox, FragmentConverter(2), None)

    def handle(self, *messages: bytes) -> None:
        for message in messages:
            self.collector.handle_message(LSN, message)


def cut_short(message: bytes) -> bytes:
    """The message without its last byte, which cannot be decoded."""
    return message[:-1]


def test_rows_of_a_table_without_shapes_are_not_decoded() -> None:
    """They are skipped, whatever they contain; a row of a table with shapes is decoded."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(OTHER, "other"), relation(USERS, "users"))
    capture.handle(*[cut_short(insert(OTHER))] * 5, insert(USERS), cut_short(insert(OTHER)), commit(LSN))
    capture.publisher.confirm()
    assert capture.published == [LSN]
    with pytest.raises(DecodeError, match=r"^at 0/3E8: pgoutput Insert: byte "):
        capture.handle(begin(LSN + 100, 743), cut_short(insert(USERS)))


def test_a_row_of_a_new_partition_is_decoded() -> None:
    """The partition belongs to its root's shapes from its relation message on."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(PARTITION, "part"))
    with pytest.raises(DecodeError, match=r"pgoutput Insert: byte "):
        capture.handle(cut_short(insert(PARTITION)))


def test_a_table_is_decoded_from_its_first_shape_on() -> None:
    """Even in mid-transaction, though the shape gets nothing of that one, which commits below the shape's start."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(OTHER, "other"), cut_short(insert(OTHER)))
    shapes = [ShapeDefinition("users", ("public", "users")), ShapeDefinition("other", ("public", "other"))]
    capture.subscriptions.apply_definitions(shapes)
    with pytest.raises(DecodeError, match=r"pgoutput Insert: byte "):
        capture.handle(cut_short(insert(OTHER)))


def test_a_relation_outside_a_transaction_is_refused() -> None:
    """It is unknown which transaction's changes it describes."""
    with pytest.raises(DecodeError, match=r"^at 0/3E8: a relation arrived before any transaction; connect again"):
        Capture().handle(relation(USERS, "users"))


TOO_LARGE = b"x" * MAX_EVENT_BYTES
TOO_LARGE_AS_JSON = b"\1" * (MAX_EVENT_BYTES // 8)
"""Within the limit, but not its event: JSON writes each character with six bytes, and the key repeats it."""


@pytest.mark.parametrize("value", [TOO_LARGE, TOO_LARGE_AS_JSON], ids=["values", "JSON"])
def test_a_row_over_the_topics_limit_ends_its_shapes_and_the_others_continue(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """No topic would ever accept it, so capture would stop at it again after each restart."""
    users, other = ("public", "users"), ("public", "other")
    capture = Capture(
        *(ShapeDefinition(name, users) for name in ("a", "b")),
        ShapeDefinition("ones", users, where="id = '1'"),
        ShapeDefinition("other", other),
    )
    capture.handle(begin(LSN, 742), relation(USERS, "users"), relation(OTHER, "other"))
    capture.handle(insert(USERS), insert(OTHER), insert(USERS, value), insert(OTHER), insert(USERS), commit(LSN))
    capture.publisher.log.clear()
    capture.handle(begin(LSN + 1000, 743), insert(USERS), insert(OTHER), commit(LSN + 1000))
    capture.publisher.confirm()
    assert capture.published == [LSN, LSN + 1000]
    assert capture.publisher.log == ['c ["7/1/s","ones"]', 'c ["7/1/s","other"]', "f 7/1/s"]
    ended = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    for shape_id, message in zip(("a", "b"), ended, strict=True):
        assert re.fullmatch(
            rf"shape ended shape_id={shape_id} reason=shape '{shape_id}': the insert of public\.users at 0/3E8\+4, in "
            r"transaction 742 at 0/3E8, makes an event of \d{8,9} bytes or more, over the limit of 67104768 "
            r"\(max_event_bytes, 67108864, less the key\); it needs fewer columns, or a where that "
            r"excludes such rows; resync it, or define it under a new id",
            message,
        )


def test_an_ended_shape_is_removed_before_the_fragment_with_its_row() -> None:
    """The row's fragment does not name it, and the tracker never waits for a flush of it."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(USERS, "users"), insert(USERS, TOO_LARGE))
    capture.publisher.log.clear()
    capture.handle(commit(LSN))
    assert capture.publisher.log == [
        's ["7/1/s","users"]',
        "confirmed",
        'l ["7/1/s","users","removed","log"]',
        "f 7/1/s",
    ]


def test_shapes_that_fail_on_the_same_rows_end_together() -> None:
    """A thousand were routed a thousand times, and confirmed one by one; each has its own reason."""
    users = ("public", "users")
    bad = [ShapeDefinition(f"bad-{n}", users, where=f"10 / (id - {n}) > 0", primary_key=("id",)) for n in range(30)]
    good = ShapeDefinition("good", users, where="id >= 0", primary_key=("id",))
    tables = FakeTables()
    column = ColumnBinding(1, "id", 20, -1, version=700)
    tables.tables[USERS] = TableBinding(USERS, users, ID_KEY, (column,), published_by=("all tables",))
    capture = Capture(*bad, good, tables=tables)
    calls = 0
    route = capture.subscriptions.router.route_some

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        return route(*arguments, **keywords)

    capture.subscriptions.router.route_some = counted  # type: ignore[method-assign]
    capture.collector._converter = FragmentConverter(100)
    capture.handle(begin(LSN, 742), relation(USERS, "users", 20))
    capture.handle(*(insert(USERS, str(n).encode()) for n in range(20)))
    capture.publisher.log.clear()
    capture.handle(commit(LSN))
    assert calls == 2
    assert capture.publisher.log.count("confirmed") == 1
    reasons = end_reasons(capture)
    assert {shape_id for shape_id, reason in reasons.items() if reason is None} == {
        "good",
        *(f"bad-{n}" for n in range(20, 30)),
    }
    for n in range(20):
        assert f"shape 'bad-{n}': the insert of public.users at 0/3E8+{2 * n}: " in str(reasons[f"bad-{n}"])


def test_shapes_that_do_not_fit_an_altered_table_end_together() -> None:
    """By the first delete, of which they cannot know whether the row was theirs; inserts before it are judged."""
    users, tables = ("public", "users"), FakeTables()
    columns = tuple(ColumnBinding(number, name, 25, -1, version=700) for number, name in enumerate(("id", "n"), 1))
    tables.tables[USERS] = TableBinding(USERS, users, ID_KEY, columns, published_by=("all tables",))
    shapes = [ShapeDefinition(f"s-{n}", users, where=f"n = '{n}'", primary_key=("id",)) for n in range(30)]
    capture = Capture(*shapes, ShapeDefinition("all", users, primary_key=("id",)), tables=tables)
    default = b"R" + pack(">I", USERS) + b"public\0users\0d" + pack(">h", 2)
    default += b"\1id\0" + pack(">Ii", 25, -1) + b"\0n\0" + pack(">Ii", 25, -1)
    values = pack(">h", 2) + b"t" + pack(">I", 1) + b"7" + b"t" + pack(">I", 1) + b"3"
    capture.handle(begin(LSN, 742), default, b"I" + pack(">I", USERS) + b"N" + values, commit(LSN))
    assert set(end_reasons(capture).values()) == {None}
    old = b"D" + pack(">I", USERS) + b"K" + pack(">h", 2) + b"t" + pack(">I", 1) + b"7" + b"n"
    capture.handle(begin(LSN + 1000, 743), old)
    capture.publisher.log.clear()
    capture.handle(commit(LSN + 1000))
    assert capture.publisher.log.count("confirmed") == 1
    reasons = end_reasons(capture)
    assert reasons.pop("all") is None
    for shape_id, reason in reasons.items():
        assert f"shape '{shape_id}' on public.users: where reads n, but old rows contain only id" in str(reason)


def wide_row(operation: bytes, *rows: tuple[bytes, bytes]) -> bytes:
    """A row with the columns ``id`` and ``kind``; of an update, the old one and the new one."""
    values = [pack(">h", 2) + b"".join(pack(">cI", b"t", len(each)) + each for each in row) for row in rows]
    return operation + pack(">I", PARTITION) + b"".join(map(bytes.__add__, (b"O", b"N")[-len(rows) :], values))


@pytest.mark.parametrize(
    ("rows", "ended"),
    [
        ([wide_row(b"I", (b"1", b"\xc8"))], {"all", "kinds"}),
        ([wide_row(b"U", (b"1", b"\xc8"), (b"1", b"a")), wide_row(b"I", (b"\xc8",) * 2)], {"all", "kinds", "ids"}),
        ([wide_row(b"U", (b"1", b"a"), (b"1", b"\xc8"))], {"all", "kinds"}),
        ([wide_row(b"D", (b"1", b"\xc8")).replace(b"N", b"O")], {"all", "kinds"}),
    ],
    ids=["insert", "two columns", "new row", "delete"],
)
def test_text_that_is_not_utf8_ends_the_shapes_that_read_its_column_and_the_others_continue(
    rows: list[bytes], ended: set[str]
) -> None:
    """Before PostgreSQL 16, a value of type "char" is sent as its byte. Capture would stop at it after each restart.

    A shape that is added in the open transaction, and reads the column, begins with the next one.
    """
    users, tables = ("public", "users"), FakeTables()
    columns = tuple(ColumnBinding(number, name, 25, -1, version=700) for number, name in enumerate(("id", "kind"), 1))
    tables.tables[USERS] = TableBinding(USERS, users, ID_KEY, columns, published_by=("all tables",))
    tables.later = {USERS: replace(tables.later[USERS], columns=columns)}
    part = b"R" + pack(">I", PARTITION) + b"public\0part\0f" + pack(">h", 2)
    part += b"\1id\0" + pack(">Ii", 25, -1) + b"\1kind\0" + pack(">Ii", 25, -1)
    ids = ShapeDefinition("ids", users, columns=("id",), primary_key=("id",))
    kinds = ShapeDefinition("kinds", users, columns=("id",), primary_key=("id",), where="kind = 'a'")
    all_columns, other = ShapeDefinition("all", users), ShapeDefinition("other", ("public", "other"))
    capture = Capture(ids, kinds, all_columns, other, tables=tables)
    capture.handle(begin(LSN, 742), relation(OTHER, "other"), part, wide_row(b"I", (b"5", b"a")), insert(OTHER))
    late = replace(all_columns, id="late")
    capture.subscriptions.apply_definitions([ids, kinds, all_columns, other, late])
    capture.handle(*rows, commit(LSN))
    reasons = end_reasons(capture)
    assert {shape_id for shape_id, reason in reasons.items() if reason is not None} == ended
    wrote = (
        r"transaction 742 at 0/3E8 \(.*Z\) wrote text without equivalent in UTF-8 to column kind of table public\.users"
    )
    assert re.fullmatch(wrote, str(reasons["all"]))
    capture.publisher.log.clear()
    capture.handle(begin(LSN + 1000, 743), wide_row(b"I", (b"6", b"b")), insert(OTHER), commit(LSN + 1000))
    capture.publisher.confirm()
    assert capture.published == [LSN, LSN + 1000]
    live = [f'c ["7/1/s","{shape_id}"]' for shape_id in ("ids", "late", "other") if shape_id not in ended]
    assert capture.publisher.log == [*live, "f 7/1/s"]


def test_a_large_row_within_the_limit_is_delivered() -> None:
    """Half of the limit is far more than a fragment of several rows may have, and still fits."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(USERS, "users"), insert(USERS, TOO_LARGE[: len(TOO_LARGE) // 2 - 5000]))
    capture.publisher.log.clear()
    capture.handle(commit(LSN))
    assert capture.publisher.log == ['c ["7/1/s","users"]', "f 7/1/s"]


def moody(*labels: EnumLabel) -> TableBinding:
    """``users`` with a key of an enum."""
    mood = TypeBinding(16_400, "public", "mood", "enum", labels=labels)
    column = ColumnBinding(1, "id", 16_400, -1, version=700)
    return TableBinding(USERS, ("public", "users"), ID_KEY, (column,), published_by=("all tables",), types=(mood,))


SAD, OK, HAPPY = EnumLabel(1, "sad", 700), EnumLabel(2, "ok", 705), EnumLabel(3, "happy", 700)


def end_reasons(capture: Capture) -> dict[str, str | None]:
    return {entry.definition.id: entry.ended_because for entry in capture.subscriptions.entries.shapes}


def inserted(capture: Capture) -> list[tuple[str, str]]:
    """The shape and the label of each row that was published."""
    events = [ShapeChangesEvent.from_json(value) for topic, value in capture.publisher.values if topic == "c"]
    return [(event.shape_id, str((item.value or {})["id"])) for event in events for item in event.items]


def insert_while_altered(now: TableBinding, *labels: bytes) -> Capture:
    """Insert rows after the enum was altered, of which the server says nothing: it has described the table before."""
    tables = FakeTables()
    tables.tables[USERS] = moody(SAD, HAPPY)
    shapes = [ShapeDefinition("all", ("public", "users"), primary_key=("id",))]
    shapes += [replace(shapes[0], id="some", where="id > 'sad'")]
    capture = Capture(*shapes, tables=tables)
    capture.handle(begin(LSN, 742), relation(USERS, "users", 16_400))
    tables.tables[USERS] = now
    capture.handle(*(insert(USERS, label) for label in labels), commit(LSN))
    return capture


def test_a_label_that_is_not_known_yet_is_looked_up() -> None:
    """It was added in the middle of the order, which decides what the second shape gets."""
    capture = insert_while_altered(moody(SAD, OK, HAPPY), b"sad", b"ok")
    assert end_reasons(capture) == {"all": None, "some": None}
    assert sorted(inserted(capture)) == [("all", "ok"), ("all", "sad"), ("some", "ok")]


def test_a_label_that_was_renamed_before_it_became_known_ends_the_shapes() -> None:
    """It was added, used and renamed: nothing that was recorded has changed, but the text in the log would be wrong."""
    capture = insert_while_altered(moody(SAD, replace(OK, text="fine", version=706), HAPPY), b"ok")
    reasons = end_reasons(capture)
    assert "has a label in column id that its type no longer has" in str(reasons["all"])
    assert 'column "id" holds a value that cannot be read as public.mood' in str(reasons["some"])
    assert inserted(capture) == []


def test_a_renamed_label_ends_the_shapes_with_the_first_row_that_has_its_new_name() -> None:
    """The reason is what happened, not the row."""
    capture = insert_while_altered(moody(replace(SAD, text="blue", version=706), HAPPY), b"blue")
    assert set(end_reasons(capture).values()) == {
        "label 'sad' of type public.mood was renamed to 'blue' (column id of table public.users)"
    }


def wide_relation(oid: int, columns: int) -> bytes:
    names = b"".join(f"\0c{number}\0".encode() + pack(">Ii", 25, -1) for number in range(columns))
    return b"R" + pack(">I", oid) + f"public\0t{oid}\0d".encode() + pack(">h", columns) + names


def test_descriptions_of_wide_tables_that_no_shape_is_on_take_little_memory() -> None:
    """Whoever may create tables in the publication makes thousands of them, of 1,600 columns each."""
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(USERS, "users"), insert(USERS))
    capture.handle(*(wide_relation(50_000 + number, 1_600) for number in range(300)))
    kept = sum(len(each.columns) for each in capture.collector._converter._relations.values())
    assert 1_600 < kept < 230_000
    capture.handle(*(b"T" + pack(">IBI", 1, 0, 50_000 + number) for number in range(300)))
    capture.handle(cut_short(insert(50_000)), insert(USERS), commit(LSN))
    capture.publisher.confirm()
    assert capture.published == [LSN]


def test_a_table_whose_description_was_trimmed_is_described_again_for_its_first_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a new connection; until then its rows are skipped, and it may be truncated."""
    monkeypatch.setattr("flushtracker.capture.described_relations._MOST_BYTES", 1_000)
    capture = Capture()
    capture.handle(begin(LSN, 742), relation(OTHER, "other"), relation(USERS, "users"), wide_relation(50_000, 10))
    capture.handle(relation(50_001, "last"), insert(OTHER), insert(USERS), commit(LSN))
    shapes = [ShapeDefinition("users", ("public", "users")), ShapeDefinition("other", ("public", "other"))]
    capture.subscriptions.apply_definitions(shapes)
    capture.handle(begin(LSN + 100, 743), insert(USERS))
    for change in (insert(OTHER), b"T" + pack(">IBI", 1, 0, OTHER)):
        with pytest.raises(ReconnectError, match=rf"tables \[{OTHER}\] have got shapes"):
            capture.handle(change)
    capture.handle(relation(OTHER, "other"), insert(OTHER), commit(LSN + 100))
