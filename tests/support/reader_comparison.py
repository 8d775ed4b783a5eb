"""Readers of events compared with the naive definition and with the canonical reader, on mutated events."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any, Final

from flushtracker.errors import DecodeError
from flushtracker.events.canonical_events import canonical_changes, canonical_flush, canonical_fragment
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.shape_log.log_row import item_row
from tests.support.event_mutations import Samples, mutated
from tests.support.event_oracle import NotAnEventError, parse_event

_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "fragments": FragmentEvent.from_json,
    "flushes": FlushNotification.from_json,
    "shape_changes": ShapeChangesEvent.from_json,
}


def expected_json(event: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """The event with just the keys of ``written``; an absent ``last_offset`` is null.

    A row has any columns, and is written whole. Only an incarnation after the first is written.
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
    if "items" in written:
        assert (event.get("incarnation", 1) > 1) == ("incarnation" in written)
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
