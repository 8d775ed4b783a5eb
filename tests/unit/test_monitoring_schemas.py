"""The schemas of ``/status.json`` against the documents that the programs make, and ``docs/status.md`` against both."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from flushtracker.monitoring.metrics import metrics
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus, parse_status
from tests.support.random_status import random_capture, random_job

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "status.md").read_text()
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    name: json.loads((DOCS / "schemas" / f"status_{name}.json").read_text()) for name in ("job", "capture")
}
DOCUMENTS: Final[dict[str, Callable[[Random], ProgramStatus]]] = {"job": random_job, "capture": random_capture}
WITH_EVERYTHING: Final[dict[str, ProgramStatus]] = {
    "job": next(
        job
        for seed in range(1_000)
        if (job := random_job(Random(seed))).sources and job.sources[0].holders  # noqa: S311
    ),
    "capture": next(
        capture
        for seed in range(1_000)
        if (capture := random_capture(Random(seed))).slot  # noqa: S311
        if capture.evictions and capture.waiting and capture.refused
    ),
}


def is_valid(name: str, document: object) -> bool:
    return bool(Draft202012Validator(SCHEMAS[name]).is_valid(document))


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
    first = JobStatus(0, 0, is_ready=False) if name == "job" else CaptureStatus(0, 0, None, is_connected=False)
    assert is_valid(name, first.to_json())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_document_without_a_field_or_with_another_type_is_not_valid(name: str) -> None:
    """A schema that forgot a field would accept it."""
    whole = WITH_EVERYTHING[name].to_json()
    assert is_valid(name, whole)
    for path in paths(whole):
        assert not is_valid(name, changed(whole, path)), path
        assert not is_valid(name, changed(whole, path, {"an": "object"})), path
    assert not is_valid(name, {**whole, "program": "write"})
    assert not is_valid("job" if name == "capture" else "capture", whole)


@pytest.mark.parametrize("name", SCHEMAS)
def test_docs_explain_every_field(name: str) -> None:
    """`docs/status.md` has a row for each, and none that is gone."""
    section = PAGE.split(f"### Of {'the job' if name == 'job' else 'capture'}")[1].split("\n#")[0]
    explained = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", section, re.MULTILINE))
    assert explained == {
        ".".join(key for key in path if isinstance(key, str)) for path in paths(WITH_EVERYTHING[name].to_json())
    }


def test_docs_list_every_metric() -> None:
    """`docs/status.md` has a row for each, and none that is gone."""
    listed = re.findall(r"^\| `(flushtracker_[a-z_]+)(?:{[a-z_, ]+})?` \|", PAGE, re.MULTILINE)
    assert len(set(listed)) == len(listed)
    exported = {
        line.split()[2]
        for status in WITH_EVERYTHING.values()
        for line in metrics(status, 1)[1].decode().splitlines()
        if line.startswith("# TYPE")
    }
    assert set(listed) == exported


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
