"""The JSON contract: events are read as they were written, and malformed ones are refused with a reason."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from flushtracker.errors import START_ANEW, DecodeError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape, ShapeChangesEvent
from tests.support.sample_events import CHANGES, FLUSH, FRAGMENT

READERS: list[tuple[dict[str, Any], Callable[[str | bytes], object]]] = [
    (FRAGMENT, FragmentEvent.from_json),
    (FLUSH, FlushNotification.from_json),
    (CHANGES, ShapeChangesEvent.from_json),
]
EVERY_EVENT = pytest.mark.parametrize(("event", "read"), READERS, ids=["fragment", "flush", "shape changes"])


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


def test_a_flush_without_its_writer_is_refused_with_what_to_do() -> None:
    """Each program has to name itself."""
    message = "Object missing required field `writer`: name the program that has flushed, as the shapes file has"
    with pytest.raises(DecodeError, match=message):
        FlushNotification.from_json(json.dumps({name: value for name, value in FLUSH.items() if name != "writer"}))


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


def shape(last_offset: tuple[int, int] | None, change_count: int) -> dict[str, Any]:
    last = None if last_offset is None else dict(zip(("tx_offset", "op_offset"), last_offset, strict=True))
    return {"shape_id": "a", "last_offset": last, "change_count": change_count}


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"lsn": -1}, "fragment: Expected `int` >= 0 - at `$.lsn`"),
    ({"lsn": 23997289}, "last_log_offset 0/16E2B68+6 is not in the transaction at lsn 23997289"),
    ({"follows": FRAGMENT["last_log_offset"]}, "follows 0/16E2B68+6 is not below last_log_offset 0/16E2B68+6"),
    ({"xid": None}, "a keepalive (xid null) must have a commit and no shapes"),
    ({"xid": None, "shapes": [], "commit": None}, "a keepalive (xid null) must have a commit and no shapes"),
    ({"shapes": [{"last_offset": None}]}, "fragment: Object missing required field `shape_id` - at `$.shapes[0]`"),
    ({"shapes": [shape(None, 2)]}, "shape 'a' has change_count 2 and no last_offset"),
    ({"shapes": [shape((23997288, 2), 0)]}, "shape 'a' has change_count 0 and last_offset 0/16E2B68+2"),
    ({"shapes": [shape((23997288, 8), 1)]}, "last_offset 0/16E2B68+8 of shape 'a' is outside the fragment"),
    ({"shapes": [shape((5, 0), 1)]}, "last_offset 0/5+0 of shape 'a' is outside the fragment"),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS)
def test_fragment_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    """Values out of range, offsets of another transaction or out of order, counts that disagree."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        FragmentEvent.from_json(json.dumps({**FRAGMENT, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operation": "truncate_partition", "key": None}, "truncate_partition has no key"),
        ({"value": {"id": 7}}, "shape changes: Expected `str | null`, got `int` - at `$.items[0].value[...]`"),
    ],
)
def test_bad_item_is_refused(fields: dict[str, Any], message: str) -> None:
    """The message never shows a row's value."""
    with pytest.raises(DecodeError, match=f"^{re.escape(message)}$"):
        ShapeChangesEvent.from_json(json.dumps({**CHANGES, "items": [{**CHANGES["items"][0], **fields}]}))


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


@EVERY_EVENT
def test_numbers_too_long_and_values_too_deep_are_refused(event: dict[str, Any], read: Callable[[str], Any]) -> None:
    """Input that Python's parser refuses, or can parse but not print, is a ``DecodeError`` too."""
    first, *_ = event.keys() - {"v", "source"}
    texts = [f'{{"v": 1, "source": "a", "{first}": {"9" * digits}}}' for digits in (30, 4300, 5000)]
    texts += [f'{{"v": {"[" * depth}{"]" * depth}}}' for depth in (10, 900, 980, 990, 1000, 5000)]
    for text in texts:
        with pytest.raises(DecodeError):
            read(text)
