"""The JSON Schemas of ``docs/schemas`` against the readers, both ways, over random damage to real events."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator, validators

from flushtracker.errors import DecodeError
from flushtracker.events.registry_events import parse_registry_entry
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from tests.event_schemas import schemas
from tests.support.event_mutations import (
    Samples,
    mutated,
    sample_changes,
    sample_entries,
    sample_events,
    sample_snapshots,
    spoiled,
)
from tests.support.event_oracle import NotAnEventError, parse_json
from tests.support.seeds import seeds

_EVENTS: Final = 1_500
_FOLDER: Final = Path(__file__).parents[3] / "docs" / "schemas"
_READERS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "fragments": FragmentEvent.from_json,
    "flushes": FlushNotification.from_json,
    "shapes": parse_registry_entry,
    "shape_changes": ShapeChangesEvent.from_json,
    "snapshots": SnapshotEvent.from_json,
}
_CROSS_FIELD: Final = (
    "is not in the transaction at lsn",
    "is not below last_log_offset",
    "is outside the fragment",
    "expected ascending",
)
"""What the readers say about fields that contradict each other where a schema cannot compare them."""

_SAMPLES: Final = pytest.mark.parametrize("samples", [sample_events, sample_changes, sample_entries, sample_snapshots])

# To a schema 1.0 is an integer. The readers want integers written without fraction and exponent, and the oracle's
# parser keeps the two apart.
_Validator: Final = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    stream: json.loads((_FOLDER / f"{stream}.json").read_text()) for stream in _READERS
}
_VALIDATORS: Final = {stream: _Validator(schema) for stream, schema in _SCHEMAS.items()}


def is_valid(stream: str, data: bytes) -> bool:
    """Whether ``data`` is JSON, and valid by the stream's schema."""
    with suppress(NotAnEventError):
        return bool(_VALIDATORS[stream].is_valid(parse_json(data)))
    return False


def compare(stream: str, data: bytes) -> bool:
    """Assert that schema and reader agree on ``data``; whether it is an event."""
    valid, refusal = is_valid(stream, data), ""
    try:
        _READERS[stream](data)
    except DecodeError as error:
        refusal = str(error)
    assert valid == (refusal == "") or (valid and any(text in refusal for text in _CROSS_FIELD)), (data, refusal)
    return refusal == ""


def test_there_is_a_schema_for_each_stream_and_it_is_one() -> None:
    """Valid by the meta-schema of its draft; every object of the contract is described, so nothing is left open."""
    of_streams = {path.stem for path in _FOLDER.iterdir() if not path.stem.startswith("status_")}
    assert of_streams == _READERS.keys()
    for schema in _SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_schemas_are_those_of_the_structs() -> None:
    """`python -m tests.event_schemas` writes them."""
    for stream, text in schemas():
        assert (_FOLDER / f"{stream}.json").read_text() == text, stream


@_SAMPLES
@pytest.mark.parametrize("seed", seeds(1, further=1))
def test_random_damage_is_judged_as_by_the_reader(seed: int, samples: Samples) -> None:
    """Same verdict, except for the rules that a schema cannot state; enough of both verdicts to mean something."""
    rng = Random(seed)  # noqa: S311  reproducible
    valid = sum(compare(stream, mutated(rng, text)) for stream, text in islice(samples(rng), _EVENTS))
    assert _EVENTS / 10 < valid < _EVENTS * 9 / 10


@_SAMPLES
def test_every_field_of_a_wrong_type_is_judged_as_by_the_reader(samples: Samples) -> None:
    """Each field removed, null, or of another type, at each depth; a schema that forgot a field would accept it."""
    for stream, text in islice(samples(Random(1)), 8):  # noqa: S311  reproducible
        for variant in spoiled(text):
            compare(stream, variant.encode())


@pytest.mark.parametrize("stream", _READERS)
def test_the_description_lists_the_rules_that_a_schema_cannot_state(stream: str) -> None:
    """A writer that checks by the schema alone knows what it does not check."""
    description = _SCHEMAS[stream]["description"]
    assert "no key twice in one object" in description
    objects = _SCHEMAS[stream]["$defs"].values()
    keys = {key for each in objects for key in each["properties"]}
    assert ("follows is below last_log_offset" in description) == ("follows" in keys)
    assert ("the ranges of unseen are ascending" in description) == ("unseen" in keys)
    assert ("the timelines of a history and their LSNs are ascending" in description) == ("switches" in keys)
