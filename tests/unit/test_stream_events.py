"""The JSON contract: events are read as they were written, and malformed ones are refused with a reason."""

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import START_ANEW, DecodeError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.events.strict_json import MAX_BIGINT
from flushtracker.wal.changes import Commit, LogItem, Operation
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_events import CHANGES, FLUSH, FRAGMENT

READERS: list[tuple[dict[str, Any], Callable[[str | bytes], object]]] = [
    (FRAGMENT, FragmentEvent.from_json),
    (FLUSH, FlushNotification.from_json),
    (CHANGES, ShapeChangesEvent.from_json),
]
EVERY_EVENT = pytest.mark.parametrize(("event", "read"), READERS, ids=["fragment", "flush", "shape changes"])

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)
BIGINTS = st.integers(0, MAX_BIGINT)
COMMITS = st.builds(Commit, TEXT, BIGINTS)
ROWS = st.none() | st.dictionaries(TEXT, st.none() | TEXT)
OPERATIONS: st.SearchStrategy[Operation] = st.sampled_from(["insert", "update", "delete", "truncate"])
ITEMS = st.builds(LogItem, st.builds(LogOffset, BIGINTS, BIGINTS), OPERATIONS, st.none() | TEXT, ROWS, ROWS)


@st.composite
def fragments(draw: st.DrawFn) -> FragmentEvent:
    """Any consistent fragment."""
    lsn, last_op = draw(st.integers(1, MAX_BIGINT)), draw(st.integers(0, MAX_BIGINT - 1))
    xid = draw(st.none() | st.integers(0, 2**32 - 1))
    offsets = st.builds(LogOffset, st.just(lsn), st.integers(0, last_op + 1))
    shapes = [
        draw(
            st.builds(FragmentShape, NAMES, offsets, st.integers(1, 100))
            | st.builds(FragmentShape, NAMES, st.none(), st.just(0))
        )
        for _ in range(0 if xid is None else draw(st.integers(0, 3)))
    ]
    return FragmentEvent(
        source=draw(NAMES),
        xid=xid,
        lsn=lsn,
        follows=LogOffset(draw(st.integers(-1, lsn - 1)), draw(BIGINTS)),
        last_log_offset=LogOffset(lsn, last_op),
        start=draw(st.booleans()),
        has_begin=draw(st.booleans()),
        commit=draw(COMMITS if xid is None else st.none() | COMMITS),
        shapes=tuple(shapes),
    )


@given(fragments())
def test_fragment_is_read_as_written(event: FragmentEvent) -> None:
    """Through text and through bytes."""
    assert FragmentEvent.from_json(event.to_json()) == event
    assert FragmentEvent.from_json(event.to_json().encode()) == event


@given(
    st.builds(
        FlushNotification,
        NAMES,
        st.sampled_from(["flushed", "removed"]),
        NAMES,
        st.builds(LogOffset, BIGINTS, BIGINTS),
        NAMES,
    )
)
def test_flush_notification_is_read_as_written(event: FlushNotification) -> None:
    """Through text and through bytes."""
    assert FlushNotification.from_json(event.to_json()) == event
    assert FlushNotification.from_json(event.to_json().encode()) == event


@st.composite
def links(draw: st.DrawFn) -> dict[str, Any]:
    """What an event follows and where it ends."""
    tx_offset = draw(st.integers(1, MAX_BIGINT))
    last = LogOffset(tx_offset, draw(BIGINTS))
    follows = LogOffset(draw(st.integers(-1, tx_offset - 1)), draw(BIGINTS))
    return {"last_log_offset": last, "follows": follows, "start": draw(st.booleans())}


@st.composite
def shape_changes(draw: st.DrawFn) -> ShapeChangesEvent:
    """Any consistent event."""
    return ShapeChangesEvent(
        source=draw(NAMES),
        shape_id=draw(NAMES),
        xid=draw(BIGINTS),
        has_begin=draw(st.booleans()),
        commit=draw(st.none() | COMMITS),
        items=tuple(draw(st.lists(ITEMS, max_size=3))),
        **draw(links()),
    )


@given(shape_changes())
def test_shape_changes_are_read_as_written(event: ShapeChangesEvent) -> None:
    """Through text; a value's NULL and an absent column stay distinct."""
    assert ShapeChangesEvent.from_json(event.to_json()) == event


@EVERY_EVENT
def test_the_contract_example_is_written_back_unchanged(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """Keys, their order and their values are those of the contract, in one line."""
    text = read(json.dumps(event)).to_json()
    assert text == json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    assert "\n" not in text


@EVERY_EVENT
def test_unknown_keys_are_ignored(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """A later producer may send more."""
    assert read(json.dumps({**event, "later": [1]})) == read(json.dumps(event))


@EVERY_EVENT
def test_every_missing_key_is_named(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """Each key of version 1 is required."""
    for name in event.keys() - {"v"}:
        with pytest.raises(
            DecodeError, match=f"^{name} is missing{': name the program that has flushed' if name == 'writer' else '$'}"
        ):
            read(json.dumps({key: value for key, value in event.items() if key != name}))
    with pytest.raises(DecodeError, match=r"^v is missing$"):
        read(json.dumps({key: value for key, value in event.items() if key != "v"}))


@EVERY_EVENT
def test_every_wrong_type_is_named(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """No key accepts a float, and a boolean is not a number."""
    for name in event.keys() - {"v"}:
        with pytest.raises(DecodeError, match=f"^{name} has type float, expected (str|int|dict|bool|list)$"):
            read(json.dumps({**event, name: 1.5}))
    for name, value in event.items():
        if type(value) is int and name != "v":
            with pytest.raises(DecodeError, match=f"^{name} has type bool, expected int$"):
                read(json.dumps({**event, name: True}))


@EVERY_EVENT
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON: Expecting value at character 0"),
        ('{"v": 1', "is not JSON: Expecting ',' delimiter at character 7"),
        (b"\xff", "is not JSON: byte 0 is not UTF-8"),
        (b'{"v": 1, "source": "us\xe9r"}', "is not JSON: byte 22 is not UTF-8"),
        ('{"v": 1}'.encode("utf-16"), "is not JSON: byte 0 is not UTF-8"),
        ("\ufeff{}", "is not JSON: Expecting value at character 0"),
        ('{"v": 1} {}', "is not JSON: Extra data at character 9"),
        ("{'v': 1}", "is not JSON: Expecting property name enclosed in double quotes at character 1"),
        ('{"v": 01}', "is not JSON: Expecting ',' delimiter at character 7"),
        ('{"v": 1 /* one */}', "is not JSON: Expecting ',' delimiter at character 8"),
        ('{"v": 1, "source": "a\nb"}', "is not JSON: Invalid control character at at character 21"),
        ('{"v": 1, "later": NaN}', "has NaN, which is not JSON"),
        ('{"v": 1, "later": [-Infinity]}', "has -Infinity, which is not JSON"),
        ('{"v": 1, "source": "a", "source": "b"}', "has the key 'source' twice"),
        ('{"v": 1, "later": {"a": 1, "\\u0061": 1}}', "has the key 'a' twice"),
        ('{"v": 1, "source": "a\\ud800"}', "is not JSON: half a surrogate pair in a string"),
        ('{"v": 1, "\\udc00\\ud800": 1}', "is not JSON: half a surrogate pair in a string"),
        ("[" * 100_000, "is not JSON: RecursionError"),
        ("[]", "is a JSON list, expected an object"),
        ("null", "is a JSON NoneType, expected an object"),
        ('{"v": 4}', "has v 4, this program reads v 1"),
        ('{"v": "1"}', "has v '1', this program reads v 1"),
        ('{"v": true}', "has v True, this program reads v 1"),
        ('{"v": 1.0}', "has v 1.0, this program reads v 1"),
        ('{"v": 1e0}', "has v 1.0, this program reads v 1"),
    ],
)
def test_anything_but_an_event_is_refused(
    event: dict[str, Any], read: Callable[[str | bytes], Any], text: str | bytes, message: str
) -> None:
    """It is not JSON, not an object, or not of this version."""
    assert event
    advice = (
        f"; upgrade this program, then start it again; if a version before 0.1.0 wrote it, {START_ANEW}"
        if text == '{"v": 4}'
        else ""
    )
    with pytest.raises(DecodeError, match=f"{re.escape(message)}{advice}$"):
        read(text)


@EVERY_EVENT
@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\u2029"])
def test_names_with_control_characters_are_refused(
    event: dict[str, Any], read: Callable[[str], Any], character: str
) -> None:
    """A line break in a source or a shape's id would forge a line of the log; the message shows it escaped."""
    name = f"users{character}"
    for key in event.keys() & {"source", "shape_id"}:
        message = f"{key} is {name!r}, which has a control character, such as a line break"
        with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
            read(json.dumps({**event, key: name}))
    if "shapes" in event:
        with pytest.raises(DecodeError, match=r"^shape_id is 'users.*', which has a control character"):
            read(json.dumps({**event, "shapes": [{"shape_id": name, "last_offset": None, "change_count": 0}]}))


def test_a_whole_surrogate_pair_is_one_character() -> None:
    """Producers that write ASCII escape characters beyond 16 bits so."""
    text = json.dumps({**FLUSH, "shape_id": "a🙂"})
    assert "\\ud83d\\ude42" in text
    assert FlushNotification.from_json(text).shape_id == "a🙂"


OFFSET = {"tx_offset": 5, "op_offset": 0}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"source": ""}, "source is empty"),
    ({"lsn": -1}, f"lsn is -1, expected 0 to {MAX_BIGINT}"),
    ({"lsn": MAX_BIGINT + 1}, f"lsn is {MAX_BIGINT + 1}, expected 0 to {MAX_BIGINT}"),
    ({"xid": -1}, f"xid is -1, expected 0 to {MAX_BIGINT}"),
    ({"lsn": 23997289}, "last_log_offset 0/16E2B68+6 is not in the transaction at lsn 23997289"),
    ({"follows": FRAGMENT["last_log_offset"]}, "follows 0/16E2B68+6 is not below last_log_offset 0/16E2B68+6"),
    ({"follows": {"tx_offset": -2, "op_offset": 0}}, f"follows: tx_offset is -2, expected -1 to {MAX_BIGINT}"),
    ({"follows": {"tx_offset": 5}}, "follows: op_offset is missing"),
    ({"last_log_offset": {"tx_offset": "5", "op_offset": 0}}, "last_log_offset: tx_offset has type str, expected int"),
    (
        {"last_log_offset": {"tx_offset": -1, "op_offset": 0}},
        f"last_log_offset: tx_offset is -1, expected 0 to {MAX_BIGINT}",
    ),
    ({"xid": None}, "a keepalive (xid null) must have a commit and no shapes"),
    ({"xid": None, "shapes": [], "commit": None}, "a keepalive (xid null) must have a commit and no shapes"),
    ({"commit": {"end_lsn": 5}}, "commit_timestamp is missing"),
    ({"commit": {"commit_timestamp": "", "end_lsn": 5}}, "commit_timestamp is empty"),
    ({"commit": {"commit_timestamp": "x", "end_lsn": -1}}, f"end_lsn is -1, expected 0 to {MAX_BIGINT}"),
    ({"shapes": [None]}, "shapes has an element that is not an object"),
    ({"shapes": [{"last_offset": None, "change_count": 0}]}, "shape_id is missing"),
    ({"shapes": [{"shape_id": "a", "last_offset": None}]}, "change_count is missing"),
    (
        {"shapes": [{"shape_id": "a", "last_offset": None, "change_count": 2}]},
        "shape 'a' has change_count 2 and last_offset None",
    ),
    (
        {"shapes": [{"shape_id": "a", "last_offset": {"tx_offset": 23997288, "op_offset": 2}, "change_count": 0}]},
        "shape 'a' has change_count 0 and last_offset 0/16E2B68+2",
    ),
    (
        {"shapes": [{"shape_id": "a", "last_offset": {"tx_offset": 23997288, "op_offset": 8}, "change_count": 1}]},
        "last_offset 0/16E2B68+8 of shape 'a' is outside the fragment",
    ),
    (
        {"shapes": [{"shape_id": "a", "last_offset": OFFSET, "change_count": 1}]},
        "last_offset 0/5+0 of shape 'a' is outside the fragment",
    ),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS)
def test_fragment_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    """Values out of range, offsets of another transaction or out of order, counts that disagree."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        FragmentEvent.from_json(json.dumps({**FRAGMENT, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "flush"}, "type is 'flush', expected 'flushed' or 'removed'"),
        ({"shape_id": ""}, "shape_id is empty"),
        ({"offset": None}, "offset has type NoneType, expected dict"),
        ({"offset": {"tx_offset": 1, "op_offset": -1}}, f"offset: op_offset is -1, expected 0 to {MAX_BIGINT}"),
    ],
)
def test_bad_flush_notification_is_refused(fields: dict[str, Any], message: str) -> None:
    """An unknown type, no shape, no offset."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        FlushNotification.from_json(json.dumps({**FLUSH, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"operation": "upsert"},
            "operation is 'upsert', expected one of insert, update, delete, truncate, truncate_partition",
        ),
        ({"operation": "truncate_partition", "key": None}, "truncate_partition has no key"),
        ({"value": {"id": 7}}, "value has a column that is neither a string nor null"),
        ({"old_value": []}, "old_value has type list, expected dict"),
        ({"key": ""}, "key is empty"),
        ({"offset": {"tx_offset": 1}}, "offset: op_offset is missing"),
    ],
)
def test_bad_item_is_refused(fields: dict[str, Any], message: str) -> None:
    """An unknown operation, values that are not text; the message never shows a row's value."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        ShapeChangesEvent.from_json(json.dumps({**CHANGES, "items": [{**CHANGES["items"][0], **fields}]}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"follows": None}, "follows has type NoneType, expected dict"),
        ({"follows": {"tx_offset": -2, "op_offset": 0}}, f"follows: tx_offset is -2, expected -1 to {MAX_BIGINT}"),
        ({"follows": CHANGES["last_log_offset"]}, "follows 0/16E2B68+6 is not below last_log_offset 0/16E2B68+6"),
        ({"start": None}, "start has type NoneType, expected bool"),
        ({"start": 1}, "start has type int, expected bool"),
    ],
)
def test_bad_link_of_shape_changes_is_refused(fields: dict[str, Any], message: str) -> None:
    """A writer that misread what an event follows would take a gap for nothing."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        ShapeChangesEvent.from_json(json.dumps({**CHANGES, **fields}))


@pytest.mark.parametrize("key", ["follows", "start"])
def test_shape_changes_without_a_link_are_refused(key: str) -> None:
    """They could only be taken for a gap."""
    with pytest.raises(DecodeError, match=f"^{key} is missing$"):
        ShapeChangesEvent.from_json(json.dumps({name: value for name, value in CHANGES.items() if name != key}))


def test_a_number_of_a_thousand_digits_is_not_quoted_whole() -> None:
    """The message stays short, whatever the event has."""
    with pytest.raises(DecodeError, match=r"^lsn is 9{40}, expected 0 to 9223372036854775807$"):
        FragmentEvent.from_json(json.dumps({**FRAGMENT, "lsn": 10**1000 - 1}))


def test_fragment_shape_may_leave_out_a_null_offset() -> None:
    """An absent offset means null, which is right without changes."""
    event = FragmentEvent.from_json(json.dumps({**FRAGMENT, "shapes": [{"shape_id": "a", "change_count": 0}]}))
    assert event.shapes == (FragmentShape("a", None, 0),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@EVERY_EVENT
@given(data=st.data())
def test_random_json_raises_nothing_but_decode_error(
    event: dict[str, Any], read: Callable[[str | bytes], Any], data: st.DataObject
) -> None:
    """An event with any value anywhere in it is parsed or refused."""
    broken = data.draw(JSON) if data.draw(st.booleans()) else replaced(data, json.loads(json.dumps(event)))
    with contextlib.suppress(DecodeError):
        read(json.dumps(broken))


def replaced(data: st.DataObject, event: Any) -> Any:
    """The same JSON with one value replaced or removed, at any depth."""
    if not isinstance(event, (dict, list)) or not event:
        return data.draw(JSON)
    name: Any = data.draw(st.sampled_from(sorted(event)) if isinstance(event, dict) else st.integers(0, len(event) - 1))
    if data.draw(st.integers(0, 3)) == 0:
        del event[name]
    else:
        event[name] = replaced(data, event[name])
    return event


@EVERY_EVENT
@given(text=st.text() | st.binary())
def test_random_text_and_bytes_raise_nothing_but_decode_error(
    event: dict[str, Any], read: Callable[[str | bytes], Any], text: str | bytes
) -> None:
    """A topic or a file may contain anything."""
    assert event
    with pytest.raises(DecodeError):
        read(text)


@EVERY_EVENT
def test_numbers_too_long_and_values_too_deep_are_refused(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """Input that Python's parser refuses, or can parse but not print, is a ``DecodeError`` too."""
    first, *_ = event.keys() - {"v", "source"}
    texts = [f'{{"v": 1, "source": "a", "{first}": {"9" * digits}}}' for digits in (30, 4300, 5000)]
    texts += [f'{{"v": {"[" * depth}{"]" * depth}}}' for depth in (10, 900, 980, 990, 1000, 5000)]
    for text in texts:
        with pytest.raises(DecodeError):
            read(text)
