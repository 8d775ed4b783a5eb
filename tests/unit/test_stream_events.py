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
from flushtracker.events.structs import MAX_BIGINT
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
            DecodeError,
            match=f": Object missing required field `{name}`{': name the program' if name == 'writer' else '$'}",
        ):
            read(json.dumps({key: value for key, value in event.items() if key != name}))
    with pytest.raises(DecodeError, match=r": Object missing required field `v`$"):
        read(json.dumps({key: value for key, value in event.items() if key != "v"}))


@EVERY_EVENT
def test_every_wrong_type_is_named(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """No key accepts a float, and a boolean is not a number."""
    for name in event.keys() - {"v"}:
        with pytest.raises(DecodeError, match=rf": Expected `[a-z |]+`, got `float` - at `\$\.{name}`$"):
            read(json.dumps({**event, name: 1.5}))
    for name, value in event.items():
        if type(value) is int and name != "v":
            with pytest.raises(DecodeError, match=rf": Expected `int[a-z |]*`, got `bool` - at `\$\.{name}`$"):
                read(json.dumps({**event, name: True}))


@EVERY_EVENT
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON: it is cut off, or has half a surrogate pair"),
        ('{"v": 1', "is not JSON: it is cut off, or has half a surrogate pair"),
        (b"\xff", "is not JSON: invalid character (byte 0)"),
        (b'{"v": 1, "source": "us\xe9r"}', "is not JSON: Invalid UTF-8 encoded string"),
        ('{"v": 1}'.encode("utf-16"), "is not JSON: invalid character (byte 0)"),
        ("\ufeff{}", "is not JSON: invalid character (byte 0)"),
        ('{"v": 1} {}', "is not JSON: Extra data: line 1 column 10 (char 9)"),
        ("{'v': 1}", "is not JSON: object keys must be strings (byte 1)"),
        ('{"v": 01}', "is not JSON: invalid number (byte 7)"),
        ('{"v": 1 /* one */}', "is not JSON: expected ',' or '}' (byte 8)"),
        ('{"v": 1, "source": "a\nb"}', "is not JSON: invalid character (byte 21)"),
        ('{"v": 1, "later": NaN}', "is not JSON: invalid character (byte 18)"),
        ('{"v": 1, "later": [-Infinity]}', "is not JSON: invalid character (byte 20)"),
        ('{"v": 1, "source": "a", "source": "b"}', "has the key 'source' twice"),
        ('{"v": 1, "later": {"a": 1, "\\u0061": 1}}', "has the key 'a' twice"),
        ('{"v": 1, "source": "a\\ud800"}', "is not JSON: it is cut off, or has half a surrogate pair"),
        ('{"v": 1, "\\udc00\\ud800": 1}', "is not JSON: invalid utf-16 surrogate pair (byte 16)"),
        ('{"v":' + "[" * 100_000, "is not JSON: it is nested too deeply"),
        ("[]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
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
        message = f"the name {name!r} has a control character, such as a line break"
        with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
            read(json.dumps({**event, key: name}))
    if "shapes" in event:
        with pytest.raises(DecodeError, match=r"^the name 'users.*' has a control character"):
            read(json.dumps({**event, "shapes": [{"shape_id": name, "last_offset": None, "change_count": 0}]}))


def test_a_whole_surrogate_pair_is_one_character() -> None:
    """Producers that write ASCII escape characters beyond 16 bits so."""
    text = json.dumps({**FLUSH, "shape_id": "a🙂"})
    assert "\\ud83d\\ude42" in text
    assert FlushNotification.from_json(text).shape_id == "a🙂"


OFFSET = {"tx_offset": 5, "op_offset": 0}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"source": ""}, "fragment: Expected `str` of length >= 1 - at `$.source`"),
    ({"lsn": -1}, "fragment: Expected `int` >= 0 - at `$.lsn`"),
    ({"lsn": MAX_BIGINT + 1}, f"fragment: Expected `int` <= {MAX_BIGINT} - at `$.lsn`"),
    ({"xid": -1}, "fragment: Expected `int` >= 0 - at `$.xid`"),
    ({"lsn": 23997289}, "last_log_offset 0/16E2B68+6 is not in the transaction at lsn 23997289"),
    ({"follows": FRAGMENT["last_log_offset"]}, "follows 0/16E2B68+6 is not below last_log_offset 0/16E2B68+6"),
    ({"follows": {"tx_offset": -2, "op_offset": 0}}, "fragment: Expected `int` >= -1 - at `$.follows.tx_offset`"),
    ({"follows": {"tx_offset": 5}}, "fragment: Object missing required field `op_offset` - at `$.follows`"),
    (
        {"last_log_offset": {"tx_offset": "5", "op_offset": 0}},
        "fragment: Expected `int`, got `str` - at `$.last_log_offset.tx_offset`",
    ),
    (
        {"last_log_offset": {"tx_offset": -1, "op_offset": 0}},
        "fragment: Expected `int` >= 0 - at `$.last_log_offset.tx_offset`",
    ),
    ({"xid": None}, "a keepalive (xid null) must have a commit and no shapes"),
    ({"xid": None, "shapes": [], "commit": None}, "a keepalive (xid null) must have a commit and no shapes"),
    ({"commit": {"end_lsn": 5}}, "fragment: Object missing required field `commit_timestamp` - at `$.commit`"),
    (
        {"commit": {"commit_timestamp": "", "end_lsn": 5}},
        "fragment: Expected `str` of length >= 1 - at `$.commit.commit_timestamp`",
    ),
    (
        {"commit": {"commit_timestamp": "x", "end_lsn": -1}},
        "fragment: Expected `int` >= 0 - at `$.commit.end_lsn`",
    ),
    ({"shapes": [None]}, "fragment: Expected `object`, got `null` - at `$.shapes[0]`"),
    (
        {"shapes": [{"last_offset": None, "change_count": 0}]},
        "fragment: Object missing required field `shape_id` - at `$.shapes[0]`",
    ),
    (
        {"shapes": [{"shape_id": "a", "last_offset": None}]},
        "fragment: Object missing required field `change_count` - at `$.shapes[0]`",
    ),
    (
        {"shapes": [{"shape_id": "a", "last_offset": None, "change_count": 2}]},
        "shape 'a' has change_count 2 and no last_offset",
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
        ({"type": "flush"}, "flush notification: Invalid enum value 'flush' - at `$.type`"),
        ({"shape_id": ""}, "flush notification: Expected `str` of length >= 1 - at `$.shape_id`"),
        ({"offset": None}, "flush notification: Expected `object`, got `null` - at `$.offset`"),
        (
            {"offset": {"tx_offset": 1, "op_offset": -1}},
            "flush notification: Expected `int` >= 0 - at `$.offset.op_offset`",
        ),
    ],
)
def test_bad_flush_notification_is_refused(fields: dict[str, Any], message: str) -> None:
    """An unknown type, no shape, no offset."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        FlushNotification.from_json(json.dumps({**FLUSH, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operation": "upsert"}, "shape changes: Invalid enum value 'upsert' - at `$.items[0].operation`"),
        ({"operation": "truncate_partition", "key": None}, "truncate_partition has no key"),
        ({"value": {"id": 7}}, "shape changes: Expected `str | null`, got `int` - at `$.items[0].value[...]`"),
        ({"old_value": []}, "shape changes: Expected `object | null`, got `array` - at `$.items[0].old_value`"),
        ({"key": ""}, "shape changes: Expected `str` of length >= 1 - at `$.items[0].key`"),
        (
            {"offset": {"tx_offset": 1}},
            "shape changes: Object missing required field `op_offset` - at `$.items[0].offset`",
        ),
    ],
)
def test_bad_item_is_refused(fields: dict[str, Any], message: str) -> None:
    """An unknown operation, values that are not text; the message never shows a row's value."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        ShapeChangesEvent.from_json(json.dumps({**CHANGES, "items": [{**CHANGES["items"][0], **fields}]}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"follows": None}, "shape changes: Expected `object`, got `null` - at `$.follows`"),
        (
            {"follows": {"tx_offset": -2, "op_offset": 0}},
            "shape changes: Expected `int` >= -1 - at `$.follows.tx_offset`",
        ),
        ({"follows": CHANGES["last_log_offset"]}, "follows 0/16E2B68+6 is not below last_log_offset 0/16E2B68+6"),
        ({"start": None}, "shape changes: Expected `bool`, got `null` - at `$.start`"),
        ({"start": 1}, "shape changes: Expected `bool`, got `int` - at `$.start`"),
    ],
)
def test_bad_link_of_shape_changes_is_refused(fields: dict[str, Any], message: str) -> None:
    """A writer that misread what an event follows would take a gap for nothing."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        ShapeChangesEvent.from_json(json.dumps({**CHANGES, **fields}))


@pytest.mark.parametrize("key", ["follows", "start"])
def test_shape_changes_without_a_link_are_refused(key: str) -> None:
    """They could only be taken for a gap."""
    with pytest.raises(DecodeError, match=f"^shape changes: Object missing required field `{key}`$"):
        ShapeChangesEvent.from_json(json.dumps({name: value for name, value in CHANGES.items() if name != key}))


def test_a_number_of_a_thousand_digits_is_not_quoted_whole() -> None:
    """The message stays short, whatever the event has."""
    with pytest.raises(DecodeError, match=r"^fragment: Expected `int` <= 9223372036854775807 - at `\$\.lsn`$"):
        FragmentEvent.from_json(json.dumps({**FRAGMENT, "lsn": 10**1000 - 1}))
    with pytest.raises(DecodeError, match=r"^flush notification: Invalid enum value 'x{200,300} …$"):
        FlushNotification.from_json(json.dumps({**FLUSH, "type": "x" * 1000}))


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
