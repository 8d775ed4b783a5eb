"""Readers of events compared with the naive definition, on mutated events."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any, Final

from flushtracker.errors import DecodeError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from tests.support.event_mutations import Samples, mutated
from tests.support.event_oracle import NotAnEventError, parse_event

READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "fragments": FragmentEvent.from_json,
    "flushes": FlushNotification.from_json,
    "shape_changes": ShapeChangesEvent.from_json,
}


def expected_json(event: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """The event with just the keys of ``written``; an absent ``last_offset`` is null.

    A row has any columns, and is written whole. Only an incarnation after the first is written, and no schema that is
    null.
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
        assert (event.get("schema") is not None) == ("schema" in written)
    return result


def compare(stream: str, data: bytes) -> bool:
    """Assert that the reader agrees with the definition on ``data``; whether it is an event."""
    written, event = None, None
    with suppress(DecodeError):
        written = json.loads(READERS[stream](data).to_json())
    with suppress(NotAnEventError):
        event = parse_event(stream, data)
    assert (written is None) == (event is None), data
    assert event is None or written is None or written == expected_json(event, written), data
    return event is not None


def compare_many(seed: int, count: int, samples: Samples) -> int:
    """Compare ``count`` mutated events; returns how many of them are still events."""
    rng = Random(seed)  # noqa: S311  reproducible
    return sum(compare(stream, mutated(rng, text)) for stream, text in islice(samples(rng), count))
