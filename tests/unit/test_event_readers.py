"""The reader of events against the definition of an event, over random damage to real ones."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from random import Random
from typing import Any, Final

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from tests.support.event_mutations import Samples, mutated, sample_changes, sample_events, spoiled
from tests.support.event_oracle import NotAnEventError, parse_event

_EVENTS: Final = 5_000
_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "fragments": FragmentEvent.from_json,
    "flushes": FlushNotification.from_json,
    "shape_changes": ShapeChangesEvent.from_json,
}
_SAMPLES: Final = pytest.mark.parametrize("samples", [sample_events, sample_changes])


def expected_json(event: dict[str, Any], written: dict[str, Any]) -> dict[str, Any]:
    """The event with just the keys of ``written``, an event of version 1; an absent ``last_offset`` is null.

    A row has any columns, and is written whole.
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
    return event is not None


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
