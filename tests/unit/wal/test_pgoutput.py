"""The decoder of single ``pgoutput`` messages: each type is read, and damaged messages end in a DecodeError."""

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from struct import pack

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flushtracker.errors import DecodeError
from flushtracker.shape_log.log_row import require_timestamp
from flushtracker.trials.recordings.recording import read_recording
from flushtracker.wal.changes import Change, Column, Delete, Insert, Relation, Row, Update
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.pgoutput import (
    Begin,
    CommitMessage,
    Message,
    OtherMessage,
    RelationMessage,
    RowMessage,
    TruncateMessage,
    decode,
)
from flushtracker.wal.row_reader import RowReader
from tests.support import row_messages
from tests.support.row_messages import UNCHANGED, Unchanged, row

RECORDING = Path(__file__).parents[2] / "recording"
SECOND = 1_000_000
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def begin(microseconds: int) -> bytes:
    return b"B" + pack(">QqI", 23997288, microseconds, 742)


def relation(identity: bytes = b"d", schema: bytes = b"public", columns: int = 2, flags: int = 1) -> bytes:
    first = pack(">B", flags) + b"id\0" + pack(">Ii", 20, -1)
    second = b"\0na\xc3\xafve\0" + pack(">Ii", 25, -1)
    return b"R" + pack(">I", 7) + schema + b"\0t\0" + identity + pack(">h", columns) + first + second


def relation_message(identity: str = "default", schema: str = "public") -> RelationMessage:
    columns = (Column("id", 20, is_key=True), Column("naïve", 25))
    return RelationMessage(Relation(7, schema, "t", identity, columns))  # type: ignore[arg-type]  # one of the four


SAMPLES: list[tuple[bytes, Message]] = [
    (begin(0), Begin(23997288, "2000-01-01T00:00:00.000000Z", 742)),
    (b"C\0" + pack(">QQq", 10, 20, -1), CommitMessage(10, 20, "1999-12-31T23:59:59.999999Z")),
    (relation(), relation_message()),
    (relation(b"n"), relation_message("nothing")),
    (relation(b"f"), relation_message("full")),
    (relation(b"i", schema=b""), relation_message("index", "pg_catalog")),
    (b"T" + pack(">IBII", 2, 0, 7, 8), TruncateMessage((7, 8), cascade=False, restart_identity=False)),
    (b"T" + pack(">IBI", 1, 1, 7), TruncateMessage((7,), cascade=True, restart_identity=False)),
    (b"T" + pack(">IBI", 1, 2, 7), TruncateMessage((7,), cascade=False, restart_identity=True)),
]
OTHERS: list[bytes] = [
    b"O" + pack(">Q", 10) + b"upstream\0",
    b"Y" + pack(">I", 600) + b"\0point\0",
    b"M\1" + pack(">Q", 10) + b"app\0" + pack(">I", 2) + b"\xff\0",
    b"M\0" + pack(">Q", 10) + b"\0" + pack(">I", 0),
]
AT = LogOffset(23997288, 4)


def wide(columns: int) -> Relation:
    """A relation with the columns c0, c1, …; the first is its key."""
    return Relation(
        7, "public", "t", "default", tuple(Column(f"c{index}", 25, is_key=not index) for index in range(columns))
    )


ROWS: list[tuple[RowMessage, Change]] = [
    (
        row_messages.insert(7, ("1", "日本", "", None, UNCHANGED)),
        Insert(wide(5), AT, {"c0": "1", "c1": "日本", "c2": "", "c3": None}),
    ),
    (row_messages.insert(7, ()), Insert(wide(0), AT, {})),
    (row_messages.update(7, ("1", UNCHANGED)), Update(wide(2), AT, None, {"c0": "1"})),
    (
        row_messages.update(7, ("2", "x"), key=("1", None)),
        Update(wide(2), AT, {"c0": "1"}, {"c0": "2", "c1": "x"}),
    ),
    (
        row_messages.update(7, ("1", "x"), old=("1", None)),
        Update(wide(2), AT, {"c0": "1", "c1": None}, {"c0": "1", "c1": "x"}),
    ),
    (row_messages.delete(7, key=("1", None)), Delete(wide(2), AT, {"c0": "1"})),
    (row_messages.delete(7, old=("1", "y")), Delete(wide(2), AT, {"c0": "1", "c1": "y"})),
]
WHOLE = [*(data for data, _ in SAMPLES), *(message.data for message, _ in ROWS)]


def read(data: bytes) -> Message | Change:
    """Decode a message; that of a row as a change of a relation with as many columns as its first row has values."""
    message = decode(data)
    if not isinstance(message, RowMessage):
        return message
    columns = int.from_bytes(data[6:8], "big", signed=True)
    change, _ = RowReader(wide(min(columns, 100))).change(message, AT)
    return change


NAMES = {b"B": "Begin", b"C": "Commit", b"R": "Relation", b"I": "Insert", b"U": "Update", b"D": "Delete"} | {
    b"T": "Truncate"
}


@pytest.mark.parametrize(("data", "message"), SAMPLES)
def test_each_type_of_message_is_read(data: bytes, message: Message) -> None:
    """Every field of the types of protocol version 1 that are read, every kind of value, every replica identity."""
    assert decode(data) == message


@pytest.mark.parametrize("data", [*OTHERS, *(data.replace(b"p", b"\xff") for data in OTHERS), b"O", b"Y", b"M"])
def test_a_message_that_changes_no_table_is_not_read(data: bytes) -> None:
    """Any role may write a logical message, and name a type: nothing in them stops the stream, in no encoding."""
    assert decode(data) == OtherMessage()


def test_names_that_are_not_utf_8_are_kept_and_said() -> None:
    """In a SQL_ASCII database, any role that may create a table may name it so; different names stay different."""
    names = []
    for name in (b"\xff", b"\xfe", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode()):
        message = decode(relation(schema=name))
        assert isinstance(message, RelationMessage)
        names.append((message.relation.schema, message.relation.unreadable_name))
    assert len(set(names)) == 3
    assert [what for _, what in names] == ["it", "it", None]
    message = decode(relation().replace(b"\xc3\xaf", b"\xc3a"))
    assert isinstance(message, RelationMessage)
    assert message.relation.unreadable_name == "its column 2"


@pytest.mark.parametrize(("message", "change"), ROWS)
def test_each_type_of_row_message_is_read_by_its_relation(message: RowMessage, change: Change) -> None:
    """Every kind of value and of old row; of an old row with the key alone, only the key."""
    assert decode(message.data) == message
    assert read(message.data) == change


@pytest.mark.parametrize("data", WHOLE)
def test_a_message_cut_off_anywhere_is_an_error_that_names_its_type(data: bytes) -> None:
    """The error has the type, the byte where the decoder stopped, and the length."""
    for length in range(1, len(data)):
        with pytest.raises(DecodeError, match=rf"^pgoutput {NAMES[data[:1]]}: byte \d+ of {length} should be "):
            read(data[:length])


_TEXT = "{} that ends in a zero byte"
_COLUMN = ["a column's flags, 0 or 1", _TEXT.format("a column name"), "a type OID", "a type modifier"]
FIELDS = {
    b"B": ["a commit LSN", "a commit timestamp", "a transaction id"],
    b"C": ["flags, all of them 0", "a commit LSN", "the LSN of the commit's end", "a commit timestamp"],
    b"R": [
        *("a relation id", _TEXT.format("a schema name"), _TEXT.format("a relation name"), "a replica identity"),
        *("a number of columns", *_COLUMN, *_COLUMN),
    ],
    b"T": ["a number of relations", "options from 0 to 3", "2 relation ids"],
}


@pytest.mark.parametrize("data", [next(data for data, _ in SAMPLES if data[:1] == tag) for tag in FIELDS])
def test_a_message_cut_off_anywhere_is_an_error_that_names_the_field(data: bytes) -> None:
    """The fields of each type of message, in their order."""
    found: list[str] = []
    for length in range(1, len(data)):
        with pytest.raises(DecodeError) as caught:
            read(data[:length])
        expected = str(caught.value).partition(" should be ")[2].partition(", found ")[0]
        if found[-1:] != [expected]:
            found.append(expected)
    # The two columns of a relation follow each other.
    assert found == FIELDS[data[:1]]


@pytest.mark.parametrize("data", WHOLE)
def test_bytes_after_a_message_are_an_error(data: bytes) -> None:
    """A message that is too long was misread, so its decoded part may be wrong as well."""
    with pytest.raises(DecodeError, match=rf"byte {len(data)} of {len(data) + 1} should be the end of the message"):
        read(data + b"\0")


INSERT = b"I" + pack(">I", 7) + b"N"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "message: byte 0 of 0 should be one of the types B, C, .* found the end"),
        (
            b"S\0\0",
            "message: byte 0 of 3 should be one of the types .* found 0x53 and 2 more bytes; .* proto_version 1",
        ),
        (b"B" + pack(">QqI", 0, 0, 1), "Begin: byte 1 of 21 should be a commit LSN above 0"),
        (b"C\1" + pack(">QQq", 1, 2, 0), "Commit: byte 1 of 26 should be flags, all of them 0, found 0x01"),
        (relation(b"x"), "Relation: byte 14 of 45 should be a replica identity: d, n, f or i, found 0x78"),
        (relation(columns=-1), r"Relation: byte 15 of 45 should be a number of columns, not negative \(-1\)"),
        (relation(columns=3), "Relation: byte 45 of 45 should be a column's flags, 0 or 1, found the end"),
        (relation(columns=1), "Relation: byte 29 of 45 should be the end of the message"),
        (relation(flags=2), "Relation: byte 17 of 45 should be a column's flags, 0 or 1, found 0x02"),
        (b"R" + pack(">I", 7) + b"public", "Relation: byte 5 of 11 should be a schema name that ends in a zero byte"),
        (b"I" + pack(">I", 7) + b"O" + row("1"), "Insert: byte 5 of 14 should be a new row, N, found 0x4f"),
        (INSERT + b"\0", "Insert: byte 6 of 7 should be a number of columns, found 0x00"),
        (INSERT + pack(">h", 2) + b"n", "Insert: byte 9 of 9 should be the value of column c1, found the end"),
        (INSERT + pack(">h", 1) + b"x", "Insert: byte 8 of 9 should be a value's kind: n, u, t or b, found 0x78"),
        (INSERT + pack(">hci", 1, b"t", -1), "Insert: byte 9 of 13 should be a value's length from 0 to 0"),
        (INSERT + pack(">hci", 1, b"t", -(2**31)), "Insert: byte 9 of 13 should be a value's length from 0 to 0"),
        (
            INSERT + pack(">hci", 1, b"t", 2**31 - 1) + b"a",
            "Insert: byte 9 of 14 should be a value's length from 0 to 1",
        ),
        (INSERT + pack(">h", 1) + b"t\0\0", "Insert: byte 9 of 11 should be a value's length"),
        (b"U" + pack(">I", 7) + b"X" + row("1"), "Update: byte 5 of 14 should be a new row, N"),
        (b"U" + pack(">I", 7) + b"K" + row("1") + b"K" + row("1"), "Update: byte 14 of 23 should be a new row, N"),
        (b"D" + pack(">I", 7) + b"N" + row("1"), "Delete: byte 5 of 14 should be an old row, K or O, found 0x4e"),
        (b"T" + pack(">IBI", 1, 4, 7), "Truncate: byte 5 of 10 should be options from 0 to 3, found 0x04"),
        (b"T" + pack(">IBI", 2**32 - 1, 0, 7), "Truncate: byte 6 of 10 should be 4294967295 relation ids"),
    ],
)
def test_a_malformed_message_is_refused_with_the_byte_and_what_was_expected(data: bytes, complaint: str) -> None:
    """The message has the type, the byte, the length, what was expected and what was found."""
    with pytest.raises(DecodeError, match=f"^pgoutput {complaint}"):
        read(data)


def test_a_relation_that_has_a_column_twice_is_refused() -> None:
    """A row could keep only one of the two values."""
    column = b"\0id\0" + pack(">Ii", 20, -1)
    with pytest.raises(DecodeError, match="Relation: byte 17 of 41 should be columns with different names, found a na"):
        read(b"R" + pack(">I", 7) + b"public\0t\0d" + pack(">h", 2) + column * 2)


def test_a_table_whose_name_has_a_control_character_forges_no_message() -> None:
    """PostgreSQL allows all characters but NUL in a name."""
    reader = RowReader(replace(wide(1), schema="a\nb", name="t\x7f\ufeff"))
    with pytest.raises(DecodeError) as caught:
        reader.change(row_messages.insert(7, ()), AT)
    assert str(caught.value).startswith(r"a row of a\nb.t\x7f\ufeff has 0 values, but the relation has 1 columns; ")


def test_a_negative_number_of_values_is_refused() -> None:
    """As any other number that is not the relation's."""
    with pytest.raises(DecodeError, match=r"^a row of public\.t has 65535 values, but the relation has 0 columns; "):
        read(INSERT + pack(">h", -1))


def test_text_that_is_not_utf8_is_refused_without_showing_it() -> None:
    """The error names the byte; neither it nor its cause quotes the row."""
    data = INSERT + pack(">hci", 1, b"t", 8) + b"secret\xe9!"
    with pytest.raises(DecodeError, match="byte 19 of 21 should be text in UTF-8, found other bytes; ") as caught:
        read(data)
    assert "secret" not in str(caught.value)
    assert "e9" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 11, 21, 1, 2, 3, 456789, tzinfo=timezone.utc), "2026-11-21T01:02:03.456789Z"),
        (datetime(2026, 11, 21, tzinfo=timezone.utc), "2026-11-21T00:00:00.000000Z"),
        (datetime(1, 1, 2, tzinfo=timezone.utc), "0001-01-02T00:00:00.000000Z"),
        (datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=timezone.utc), "9999-12-30T23:59:59.999999Z"),
    ],
)
def test_a_timestamp_always_has_six_digits_and_a_z(moment: datetime, text: str) -> None:
    """One width, so that the texts sort by time; exact to the microsecond at both ends of the range."""
    since_2000 = moment - datetime(2000, 1, 1, tzinfo=timezone.utc)
    microseconds = (since_2000.days * 86_400 + since_2000.seconds) * SECOND + since_2000.microseconds
    message = decode(begin(microseconds))
    assert isinstance(message, Begin)
    assert message.commit_timestamp == text


@given(st.integers(INT64_MIN, INT64_MAX) | st.sampled_from([INT64_MIN, INT64_MAX]))
def test_any_time_of_a_commit_is_one_that_every_reader_can_hold(microseconds: int) -> None:
    """A replication origin sets it freely, to 'infinity', too: exact within the years 1 to 9999, else the nearest."""
    message = decode(begin(microseconds))
    assert isinstance(message, Begin)
    require_timestamp(message.commit_timestamp)
    read = datetime.fromisoformat(message.commit_timestamp.replace("Z", "+00:00"))
    assert all(read.astimezone(timezone(timedelta(hours=hours))) == read for hours in (-23, 23))
    wanted = min(max(microseconds, -63_082_195_200 * SECOND), 252_455_529_600 * SECOND - 1)
    assert (read - datetime(2000, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1) == wanted


VALUE = st.none() | st.just(UNCHANGED) | st.text().filter(lambda text: "\0" not in text)


@given(rows=st.lists(st.tuples(VALUE, VALUE), max_size=20), relation_id=st.integers(0, 2**32 - 1))
def test_any_row_is_decoded_as_it_was_encoded(
    rows: list[tuple[str | Unchanged | None, str | Unchanged | None]], relation_id: int
) -> None:
    """The reader inverts the encoding, for any values and any number of columns."""
    old, new = [value for value, _ in rows], [value for _, value in rows]
    message = decode(row_messages.update(relation_id, new, old=old).data)
    assert isinstance(message, RowMessage)
    assert message.relation_id == relation_id
    change, _ = RowReader(wide(len(rows))).change(message, AT)
    assert change == Update(wide(len(rows)), AT, sent(old), sent(new))


def sent(values: list[str | Unchanged | None]) -> Row:
    return {f"c{index}": value for index, value in enumerate(values) if not isinstance(value, Unchanged)}


def decode_or_refuse(data: bytes) -> None:
    try:
        read(data)
    except DecodeError as error:
        assert "\n" not in str(error)  # noqa: PT017  # either outcome is right; this one has one line


@given(tag=st.sampled_from([b"", *NAMES]), rest=st.binary(max_size=200))
@example(tag=b"", rest=b"")
@settings(max_examples=2000)
def test_random_bytes_end_in_a_message_or_a_decode_error(tag: bytes, rest: bytes) -> None:
    """No other exception escapes."""
    decode_or_refuse(tag + rest)


@cache
def recorded_messages() -> list[bytes]:
    """A sample of the recording: all messages of rare types, some of frequent ones, none of the longest."""
    by_type: dict[bytes, list[bytes]] = {}
    for frame in read_recording(RECORDING):
        if len(frame.data) < 2000:
            by_type.setdefault(frame.data[:1], []).append(frame.data)
    return [data for messages in by_type.values() for data in messages[:: max(1, len(messages) // 40)]]


@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=1000)
def test_damaged_real_messages_end_in_a_message_or_a_decode_error(data: st.DataObject, seed: int) -> None:
    """Bytes changed, removed, repeated or cut off, as by a broken network or a wrong offset."""
    message = bytearray(data.draw(st.sampled_from([*recorded_messages(), *WHOLE])))
    dice = random.Random(seed)  # noqa: S311  # picks the damage; not for security
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(message) + 1)
        match dice.randrange(4):
            case 0:
                message[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del message[at : at + dice.randint(1, 8)]
            case 2:
                message[at:at] = message[at : at + dice.randint(1, 8)]
            case _:
                del message[at:]
    decode_or_refuse(bytes(message))


def test_every_prefix_of_real_messages_is_refused() -> None:
    """A truncated message is never taken for a shorter one: no type has a valid message as a prefix."""
    types: Counter[str] = Counter()
    for data in recorded_messages():
        types[type(read(data)).__name__] += 1
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                read(data[:length])
    assert set(types) == {
        *("Begin", "CommitMessage", "RelationMessage"),
        *("Insert", "Update", "Delete", "TruncateMessage"),
    }
