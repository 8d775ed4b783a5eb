"""The reader of events against the definition of an event, over random damage to real ones."""

import json
from itertools import islice
from random import Random
from typing import Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events import event_json
from flushtracker.events.stream_events import ShapeChangesEvent, read_flush
from flushtracker.shape_log.change_columns import ChangeColumns, read_changes
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.event_mutations import Samples, sample_changes, sample_events, spoiled
from tests.support.reader_comparison import READERS, compare, compare_many
from tests.support.sample_source import SampleSource
from tests.support.seeds import seeds

_EVENTS: Final = 5_000
_SAMPLES: Final = pytest.mark.parametrize("samples", [sample_events, sample_changes])


@_SAMPLES
@pytest.mark.parametrize("seed", seeds(2, further=50))
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


@_SAMPLES
def test_events_as_they_are_written_are_searched_for_no_key_that_occurs_twice(
    monkeypatch: pytest.MonkeyPatch, samples: Samples
) -> None:
    """That takes many times as long as to read them; an event with a space is searched."""
    texts = [(stream, text.encode()) for stream, text in islice(samples(Random(5)), 400)]  # noqa: S311  reproducible
    monkeypatch.setattr(event_json, "_PLAIN", None)
    for stream, data in texts:
        READERS[stream](data)
    stream, data = texts[0]
    with pytest.raises(AttributeError):
        READERS[stream](data + b" ")


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
def test_shape_changes_may_be_written_otherwise(old: str, new: str) -> None:
    """The log has a row as this project writes it, however the event has it."""
    item = LogItem(LogOffset(2000, 4), "update", "k", {"a": "1", "b": "2"}, {"b": "2"})
    event = ShapeChangesEvent(
        *("7/1/s", "a", 42, LogOffset(1000, 0), LogOffset(2000, 4)), *(True, False, None, (item,))
    )
    text = event.to_json()
    assert old in text
    data = text.replace(old, new).encode()
    read = ShapeChangesEvent.from_json(data)
    assert read_changes(data) == ChangeColumns.of(read)


def test_a_key_that_occurs_twice_is_found_in_one_pass() -> None:
    """One notification of a megabyte of keys, the last of them twice, held a micro-batch for minutes."""
    event = SampleSource("7/1/s").flushed("users", 100).to_json()
    keys = "".join(f', "k{number}": 0' for number in range(100_000))
    with pytest.raises(DecodeError, match="has the key 'last' twice"):
        read_flush(f'{event[:-1]}{keys}, "last": 0, "last": 1}}'.encode())


@pytest.mark.parametrize(("name", "most"), [("source", 200), ("shape_id", 200), ("writer", 63)])
def test_names_in_notifications_are_bounded(name: str, most: int) -> None:
    """Any writer may send them, and the tracking job keeps them until the stream has passed their offset."""
    fields = json.loads(SampleSource("7/1/s").flushed("users", 100).to_json())
    read_flush(json.dumps(fields | {name: "x" * most}).encode())
    with pytest.raises(DecodeError, match=rf"length <= {most} - at `\$\.{name}`"):
        read_flush(json.dumps(fields | {name: "x" * (most + 1)}).encode())
