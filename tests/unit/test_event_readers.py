"""The reader of events against the definition of an event, over random damage to real ones."""

from dataclasses import replace
from itertools import islice, product
from random import Random
from typing import Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events.canonical_events import canonical_changes, canonical_fragment
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.wal.changes import Commit, LogItem, Operation, Row
from flushtracker.wal.log_offset import LogOffset
from tests.support.event_mutations import Samples, sample_changes, sample_events, spoiled
from tests.support.reader_comparison import compare, compare_canonical, compare_many
from tests.support.sample_source import SampleSource

_EVENTS: Final = 5_000
_SAMPLES: Final = pytest.mark.parametrize("samples", [sample_events, sample_changes])


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
