"""``flushtracker status --json`` against its schema, in every combination of answers."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator, ValidationError
from msgspec import structs
from referencing import Registry, Resource

import flushtracker
from flushtracker.errors import StatusError
from flushtracker.operate.status.status_output import status_output
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.program_status import ProgramStatus
from tests.support.sample_status import capturing, shapes_served, snapshotting, writing
from tests.support.slot_overviews import FACTS, NO_JOB, NO_SERVER, NO_TABLE, ROW, SLOT, URL, overview
from tests.support.status_pages import HELD, IDLE, NOW_MS, job_status

FOLDER: Final = Path(flushtracker.__file__).parents[1] / "docs"
SCHEMA: Final[dict[str, Any]] = json.loads((FOLDER / "schemas" / "status_command.json").read_text())
NAMES: Final = [f"status_{program}.json" for program in ("job", "write", "snapshot", "serve", "capture", "sink")]
DOCUMENTS: Final = [
    (name, Resource.from_contents(json.loads((FOLDER / "schemas" / name).read_text()))) for name in NAMES
]
VALIDATOR: Final = Draft202012Validator(SCHEMA, registry=Registry().with_resources(DOCUMENTS))


def document(**parts: Any) -> dict[str, Any]:
    seen = overview(**parts)
    found: dict[str, Any] = json.loads(json.dumps(status_output(seen, judge(seen, Limits(1, 1))).to_json()))
    return found


def test_every_combination_of_answers_is_valid() -> None:
    """Each of the three may answer, have nothing, or be silent."""
    for slot, job, row in product((SLOT, None, NO_SERVER), (HELD, IDLE, None, NO_JOB), (ROW, None, NO_TABLE)):
        VALIDATOR.validate(document(slot=slot, job=job, row=row))


def test_what_is_asked_before_an_upgrade_is_valid() -> None:
    """A primary, a standby, and a server that does not answer."""
    for facts in (FACTS, structs.replace(FACTS, is_standby=True, written_lsn=None), None):
        seen = replace(overview(), is_for_upgrade=True, upgrade=facts)
        found = json.loads(json.dumps(status_output(seen, judge(seen, Limits())).to_json()))
        VALIDATOR.validate(found)
        assert found["upgrade"] == (None if facts is None else facts.to_json())


def test_each_part_has_its_time_and_its_error() -> None:
    """An error is the text of the line that people read."""
    found = document(slot=NO_SERVER, job=NO_JOB)
    assert found["postgres"] == {"at_ms": NOW_MS, "error": str(NO_SERVER), "slot": None}
    assert found["job"] == {"at_ms": NOW_MS, "error": str(NO_JOB), "url": URL, "status": None}
    assert found["acks"] == {
        "at_ms": NOW_MS,
        "error": None,
        "table": "data/acks",
        "last": {
            "at_ms": NOW_MS - 156_000,
            "ack_lsn": "0/37F1C5E",
            "last_seen_lsn": "0/37F1CE7",
            "pending_shapes": 1,
            "blocking_shape_then": "users-eu",
        },
    }
    verdict = found["verdict"]
    assert (verdict["exit_code"], verdict["waiting_ms"]) == (1, 156_000)
    assert [each["kind"] for each in verdict["findings"]] == ["postgres_silent", "job_silent", "max_age"]


def test_jobs_document_is_whole() -> None:
    """As its /status.json has it."""
    assert document(job=HELD)["job"]["status"] == job_status(HELD).to_json()


def test_documents_of_other_programs_are_whole() -> None:
    """With their URLs, and why one is missing."""
    answers: list[tuple[str, CallResult[ProgramStatus]]] = [
        ("http://w", CallResult(NOW_MS, writing(NOW_MS))),
        ("http://s", CallResult(NOW_MS, snapshotting(NOW_MS))),
        ("http://h", CallResult(NOW_MS, shapes_served(NOW_MS))),
        ("http://c", CallResult(NOW_MS, capturing(NOW_MS))),
        ("http://x", CallResult(NOW_MS, error=StatusError("http://x does not answer"))),
    ]
    seen = replace(overview(), others=tuple(answers))
    found = json.loads(json.dumps(status_output(seen, judge(seen, Limits())).to_json()))
    VALIDATOR.validate(found)
    assert [each["url"] for each in found["others"]] == ["http://w", "http://s", "http://h", "http://c", "http://x"]
    assert [each["status"] for each in found["others"]][:1] == [writing(NOW_MS).to_json()]
    assert found["others"][4]["error"] == "http://x does not answer"


def test_schema_refuses_another_document() -> None:
    """It says more than that this is an object."""
    Draft202012Validator.check_schema(SCHEMA)
    found = document()
    for key in SCHEMA["$defs"]["StatusOutput"]["required"]:
        with pytest.raises(ValidationError):
            VALIDATOR.validate({name: value for name, value in found.items() if name != key})
    found["postgres"]["slot"]["written_lsn"] = 5
    with pytest.raises(ValidationError):
        VALIDATOR.validate(found)


def test_page_explains_every_problem() -> None:
    """Their kinds, as scripts see them, are those of the schema; docs/operating.md has a row for each."""
    kinds = {*SCHEMA["$defs"]["Finding"]["properties"]["kind"]["enum"]} - {"shapes_held"}
    page = (FOLDER / "operating.md").read_text()
    assert [kind for kind in kinds if f"| `{kind}` |" not in page] == []
