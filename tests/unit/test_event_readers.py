"""The reader of events against the definition of an event, over random damage to real ones."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice, product
from random import Random
from typing import Any, Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events.canonical_events import canonical_changes, canonical_flush, canonical_fragment
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.shape_log.log_row import item_row
from flushtracker.wal.changes import Commit, LogItem, Operation, Row
from flushtracker.wal.log_offset import LogOffset
from tests.support.event_mutations import Samples, mutated, sample_changes, sample_events, spoiled
from tests.support.event_oracle import NotAnEventError, parse_event
from tests.support.sample_source import SampleSource

_EVENTS: Final = 5_000
_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "fragments": FragmentEvent.from_json,
    "flushes": FlushNotification.from_json,
    "shape_changes": ShapeChangesEvent.from_json,
}
_SAMPLES: Final = pytest.mark.parametrize("samples", [sample_events, sample_changes])


def expected_json(event: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """The event with just the keys of ``written``; an absent ``last_offset`` is null.

    A row has any columns, and is written whole. The version is 2 if version 1 lacks one of the operations, and
    of a list part, and 3 of an incarnation after the first, which alone is written.
    """
    result: dict[str, Any] = {}
    for name, value in written.items():
        found = event.get(name)
        if name in {"value", "old_value"}:
            result[name] = found
        elif isinstance(value, dict):
            assert isinstance(found, dict)
            result[name] = expected_json(found, value)
        elif isinstance(value, list):
            assert isinstance(found, list)
            result[name] = [expected_json(*pair) for pair in zip(found, value, strict=True)]
        else:
            result[name] = found
    if "v" in result:
        items = event.get("items", []) if "items" in written else []
        is_list_part = "shapes" in written and 2**58 <= event["last_log_offset"]["op_offset"] < 2**58 + 2**32
        is_second = is_list_part or any(item["operation"] == "truncate_partition" for item in items)
        is_third = "items" in written and event.get("incarnation", 1) > 1
        assert is_third == ("incarnation" in written)
        result["v"] = 3 if is_third else 2 if is_second else 1
    return result


def compare(stream: str, data: bytes) -> bool:
    """Assert that the reader agrees with the definition on ``data``; whether it is an event."""
    written, event = None, None
    with suppress(DecodeError):
        written = json.loads(_READERS[stream](data).to_json())
    with suppress(NotAnEventError):
        event = parse_event(stream, data)
    assert (written is None) == (event is None), data
    assert event is None or written is None or written == expected_json(event, written), data
    compare_canonical(stream, data)
    return event is not None


def compare_canonical(stream: str, data: bytes) -> bool:
    """Assert that what the patterns read of ``data``, if they match, is what the reader reads; whether they match."""
    text = data.decode("ascii", "replace")
    if stream == "shape_changes":
        return _compare_canonical_changes(data)
    if stream == "flushes" and (flush := canonical_flush(text)) is not None:
        event = FlushNotification.from_json(data)
        assert flush == (event.source, event.type, event.shape_id, event.writer, *event.offset), data
        return True
    if stream == "fragments" and (fragment := canonical_fragment(text)) is not None:
        read = FragmentEvent.from_json(data)
        assert fragment[:5] == (read.source, *read.last_log_offset, read.follows, read.start), data
        assert fragment.is_commit == (read.commit is not None), data
        ops = [-1 if shape.last_offset is None else shape.last_offset.op_offset for shape in read.shapes]
        assert (fragment.shape_ids, fragment.last_ops) == ([shape.shape_id for shape in read.shapes], ops), data
        writers = [shape.writer for shape in read.shapes]
        assert (fragment.writers or ["log"] * len(writers)) == writers, data
        return True
    return False


def _compare_canonical_changes(data: bytes) -> bool:
    try:
        changes = canonical_changes(data.decode())
    except UnicodeDecodeError:
        return False
    if changes is None:
        return False
    event = ShapeChangesEvent.from_json(data)
    assert changes[:3] == (event.source, event.shape_id, event.xid), data
    assert changes[3:7] == (event.follows, *event.last_log_offset, event.start), data
    assert changes.incarnation == event.incarnation, data
    assert changes.commit_timestamp == (event.commit and event.commit.commit_timestamp), data
    rows = [item_row(item, 0, 0)[:6] for item in event.items]
    assert [*zip(*changes.items, strict=True)] == rows, data
    return True


def compare_many(seed: int, count: int, samples: Samples) -> int:
    """Compare ``count`` mutated events; returns how many of them are still events."""
    rng = Random(seed)  # noqa: S311  reproducible
    return sum(compare(stream, mutated(rng, text)) for stream, text in islice(samples(rng), count))


@_SAMPLES
@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_read_as_defined(seed: int, samples: Samples) -> None:
    """Same verdict and same values; enough of both verdicts to mean something."""
    readable = compare_many(seed, _EVENTS, samples)
    assert _EVENTS / 10 < readable < _EVENTS * 9 / 10


@_SAMPLES
def test_every_field_of_a_wrong_type_is_refused_as_defined(samples: Samples) -> None:
    """Each field removed, null, or of another type, at each depth; and text before or after the event."""
    for stream, text in islice(samples(Random(1)), 8):  # noqa: S311  reproducible
        for variant in spoiled(text):
            compare(stream, variant.encode())


def test_events_as_they_are_written_match_the_patterns() -> None:
    """Or they would be read the slow way, unnoticed; but not keepalives, escapes, other alphabets, great LSNs."""
    rng = Random(5)  # noqa: S311  reproducible
    unusual = ('"xid":null', "\\", "4611686018427387904")
    texts = [(stream, text) for stream, text in islice(sample_events(rng), 800) if text.isascii()]
    written = [(stream, text) for stream, text in texts if not any(each in text for each in unusual)]
    matched = [compare_canonical(stream, text.encode()) for stream, text in written]
    assert len(matched) > 100
    assert all(matched)


def _changes(*items: LogItem) -> ShapeChangesEvent:
    return ShapeChangesEvent(
        *("7/1/s", "a", 42, LogOffset(1000, 0), LogOffset(2000, 4)),
        start=True,
        has_begin=False,
        commit=None,
        items=items,
    )


def test_shape_changes_as_they_are_written_match_the_pattern() -> None:
    """Whatever their rows have: escapes, other alphabets, NULL, no column at all."""
    row: Row = {"id": "7", "naïve🙂": None, "q": '"}],\\', "c": "".join(map(chr, range(256))) + "\u2028"}
    operations: tuple[Operation, ...] = ("insert", "update", "delete", "truncate")
    rows: tuple[Row | None, ...] = (row, {}, None)
    items = [
        LogItem(LogOffset(2000, 2 * number), *fields)
        for number, fields in enumerate(product(operations, ('"t"/"7"', "ß", None), rows, rows))
    ]
    for some in ([], items[:1], items):
        for commit in (None, Commit("2026-01-01T00:00:00.000000Z", 2024)):
            event = replace(_changes(*some), commit=commit)
            assert compare_canonical("shape_changes", event.to_json().encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"b":"2"', '"a":"2"'),
        ('"a":"1","b"', '"b":"1","b"'),
        ('"b":"2"', '"b":"\\":","b":"2"'),
        ('"b":"2"', '"b":2'),
        ('"b":"2"', '"b":"2",'),
        ('"b":"2"', '"b":"\t"'),
        ('"b":"2"', '"b":"\\ud800"'),
        ('"key":"k"', '"key":""'),
        ('"key":"k"', '"key":7'),
        ('{"tx_offset":1000', '{"tx_offset":3000'),
        ("}}]}", "}},]}"),
        ("}}]}", "}}{}]}"),
        ('"items":[', '"items":[{},'),
    ],
)
def test_malformed_shape_changes_do_not_match_the_pattern(old: str, new: str) -> None:
    """They are left to the reader, which refuses them."""
    item = LogItem(LogOffset(2000, 4), "update", "k", {"a": "1", "b": "2"}, {"b": "2"})
    event = _changes(replace(item, offset=LogOffset(2000, 2)), item)
    text = event.to_json()
    assert compare_canonical("shape_changes", text.encode())
    assert old in text
    assert canonical_changes(text.replace(old, new)) is None
    with pytest.raises(DecodeError):
        ShapeChangesEvent.from_json(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"b":"2"', '"b":"\\u0032"'),
        ('"b":"2"', '"b":"\\/"'),
        ('"b":"2"', '"b": "2"'),
        ('"value":{', '"value":null,"x":{'),
        ('{"tx_offset":2000,"op_offset":4}', '{"op_offset":4,"tx_offset":2000}'),
        ('"offset":{"tx_offset":2000', '"offset":{"tx_offset":2001'),
        ('"shape_id":"a"', '"shape_id":"ä"'),
    ],
)
def test_shape_changes_that_are_written_otherwise_are_left_to_the_reader(old: str, new: str) -> None:
    """The log has a row as this project writes it, however the event has it."""
    item = LogItem(LogOffset(2000, 4), "update", "k", {"a": "1", "b": "2"}, {"b": "2"})
    event = ShapeChangesEvent(
        *("7/1/s", "a", 42, LogOffset(1000, 0), LogOffset(2000, 4)), *(True, False, None, (item,))
    )
    text = event.to_json()
    assert old in text
    assert canonical_changes(text.replace(old, new)) is None
    data = text.replace(old, new).encode()
    read = ShapeChangesEvent.from_json(data)
    assert read_changes(data) == ChangeColumns.of(read)


def test_a_fragment_for_the_shape_log_alone_has_no_list_of_writers() -> None:
    """It would be made for each fragment that the tracker reads, most often for nothing."""
    fragment = canonical_fragment(SampleSource().fragment(3000, 4, {"a": 4, "b": 5}, commit=True).to_json())
    assert fragment is not None
    assert (fragment.shape_ids, fragment.writers) == (["a", "b"], None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"last_offset":{"tx_offset":3000', '"last_offset":{"tx_offset":3001'),
        ('"follows":{"tx_offset":999', '"follows":{"tx_offset":3001'),
        ('"op_offset":5},"change_count":1', '"op_offset":6},"change_count":1'),
        ('"change_count":1}]', '"change_count":1},]'),
        ('"change_count":1}]', '"change_count":1}{"shape_id":"c","last_offset":null,"change_count":0}]'),
        ('"change_count":1}]', '"change_count":1},7]'),
        ('"shapes":[', '"shapes":[7,'),
    ],
)
def test_an_inconsistent_fragment_does_not_match_the_patterns(old: str, new: str) -> None:
    """It is left to the reader, which refuses it."""
    text = SampleSource().fragment(3000, 4, {"a": 4, "b": 5}, commit=True).to_json()
    assert compare_canonical("fragments", text.encode())
    assert old in text
    assert canonical_fragment(text.replace(old, new)) is None
    with pytest.raises(DecodeError):
        FragmentEvent.from_json(text.replace(old, new))
