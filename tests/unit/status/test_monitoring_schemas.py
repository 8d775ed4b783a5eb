"""The schemas of ``/status.json`` against the documents that the programs make, and ``docs/status.md`` against both."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http.metrics import metrics
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus, parse_status
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.sink_status import SinkStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus
from tests.status_schemas import files
from tests.support.random_status import (
    random_capture,
    random_job,
    random_serve,
    random_sink,
    random_snapshot,
    random_write,
)

DOCS: Final = Path(__file__).parents[3] / "docs"
PAGE: Final = (DOCS / "status.md").read_text()
TITLES: Final = {
    "job": "the tracking job",
    "write": "the writers' job",
    "snapshot": "the snapshots' job",
    "serve": "the HTTP server",
    "capture": "capture",
    "sink": "the feeder of Kafka sinks",
}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    name: json.loads((DOCS / "schemas" / f"status_{name}.json").read_text()) for name in TITLES
}
DOCUMENTS: Final[dict[str, Callable[[Random], ProgramStatus]]] = {
    "job": random_job,
    "write": random_write,
    "snapshot": random_snapshot,
    "serve": random_serve,
    "capture": random_capture,
    "sink": random_sink,
}
FIRST: Final[dict[str, ProgramStatus]] = {
    "job": JobStatus(0, 0, is_ready=False),
    "write": WriteStatus(0, 0, is_ready=False),
    "snapshot": SnapshotStatus(0, 0),
    "serve": ServeStatus(0, 0),
    "capture": CaptureStatus(0, 0, None, is_connected=False),
    "sink": SinkStatus(0, 0),
}


def with_everything(name: str) -> ProgramStatus:
    """A random document in which nothing is unknown and no list is empty."""
    found = (DOCUMENTS[name](Random(seed)) for seed in range(100_000))  # noqa: S311
    return next(status for status in found if is_whole(status.to_json()))


def is_whole(value: object) -> bool:
    """Whether no list is empty, and no object is missing that explains itself."""
    if isinstance(value, dict):
        objects = {"slot", "attempt", "shapes", "failure", "snapshots", "tail"}
        return all(is_whole(inner) and not (inner is None and key in objects) for key, inner in value.items())
    return not isinstance(value, list) or (bool(value) and is_whole(value[0]))


def is_valid(name: str, document: object) -> bool:
    return bool(Draft202012Validator(SCHEMAS[name]).is_valid(document))


WITH_EVERYTHING: Final = {name: with_everything(name) for name in DOCUMENTS}


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", range(50))
def test_any_document_is_valid_and_read_as_it_was(name: str, seed: int) -> None:
    status = DOCUMENTS[name](Random(seed))  # noqa: S311  reproducible
    document = json.loads(json.dumps(status.to_json()))
    Draft202012Validator(SCHEMAS[name]).validate(document)
    assert parse_status(json.dumps(document).encode()) == status


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_first_document_is_valid(name: str) -> None:
    """Before anything is known."""
    assert is_valid(name, FIRST[name].to_json())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_document_without_a_field_or_with_another_type_is_not_valid(name: str) -> None:
    """A schema that forgot a field would accept it."""
    whole = WITH_EVERYTHING[name].to_json()
    assert is_valid(name, whole)
    for path in paths(whole):
        assert not is_valid(name, changed(whole, path)), path
        assert not is_valid(name, changed(whole, path, {"an": "object"})), path
    assert not is_valid(name, {**whole, "program": "read"})
    assert [other for other in SCHEMAS if is_valid(other, whole)] == [name]


@pytest.mark.parametrize(("path", "text"), [*files()], ids=lambda each: each.name if isinstance(each, Path) else "")
def test_schemas_and_tables_are_those_of_the_structs(path: Path, text: str) -> None:
    """`python -m tests.status_schemas` writes them."""
    assert path.read_text() == text


@pytest.mark.parametrize("name", SCHEMAS)
def test_docs_explain_every_field(name: str) -> None:
    """`docs/status.md` has a row for each, and none that is gone."""
    section = PAGE.split(f"### Of {TITLES[name]}\n")[1].split("\n#")[0]
    explained = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", section, re.MULTILINE))
    whole = {".".join(key for key in path if isinstance(key, str)) for path in paths(WITH_EVERYTHING[name].to_json())}
    assert explained == {path for path in whole if not path.startswith("snapshots.")}


def test_docs_list_every_metric() -> None:
    """`docs/status.md` has a row for each, and none that is gone."""
    listed = dict(re.findall(r"^\| `(flushtracker_[a-z_]+)(?:{([a-z_, ]+)})?` \|", PAGE, re.MULTILINE))
    assert PAGE.count("\n| `flushtracker_") == len(listed)
    exported = {
        line.split()[2]
        for status in WITH_EVERYTHING.values()
        for line in metrics(status, 1)[1].decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert listed.keys() == exported


def paths(value: object, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of each field, at each depth; of a list its first item."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*before, key)
            yield from paths(inner, (*before, key))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*before, 0))


def changed(document: dict[str, Any], path: tuple[str | int, ...], *new: object) -> dict[str, Any]:
    """A copy without the field, or with another value of it."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = copy
    for key in path[:-1]:
        place = place[key]
    if new:
        place[path[-1]] = new[0]
    else:
        del place[path[-1]]
    return copy
