"""What does not pass by itself is told everywhere: status line and exit code, metric, alert, runbook, page.

A table: each such state against each surface, from the documents of the programs. A state that is new in the documents
must be added to it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, get_args, get_type_hints

import pytest
import yaml
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from flushtracker.errors import StatusError
from flushtracker.operate.status.overview import Overview
from flushtracker.operate.status.overview_text import overview_lines
from flushtracker.operate.status.status_output import status_output
from flushtracker.operate.status.timed_call import CallResult
from flushtracker.operate.status.verdict import Limits, judge
from flushtracker.status.capture_status import CaptureStatus, EndedShape, Eviction, RefusedShape, WaitingShapes
from flushtracker.status.document import StatusObject
from flushtracker.status.http.metrics import metrics
from flushtracker.status.http.page_data import PageData
from flushtracker.status.http.status_app import RUNBOOK
from flushtracker.status.program_findings import program_findings
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.snapshot_status import ShapeFailure
from flushtracker.status.write_status import Failure, ShapeNote
from tests.support.random_status import random_capture, random_snapshot, random_write
from tests.support.sample_status import capturing, snapshotting, writing
from tests.support.slot_overviews import overview
from tests.support.status_pages import NOW_MS

_CONF: Final = Path(__file__).parents[3] / "conf" / "monitoring"
_RULES: Final[list[dict[str, Any]]] = [
    rule for group in yaml.safe_load((_CONF / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
_DASHBOARD: Final = (_CONF / "grafana_dashboard.json").read_text()
_SHAPE: Final = "acme-events"
_WHY: Final = "its table was dropped"
_URL: Final = "http://other:9465"


@dataclass(frozen=True)
class State:
    """A document that has it, what it is called, and the classes of documents that it shows."""

    status: ProgramStatus
    kind: str
    metric: str
    alert: str
    shown: tuple[type, ...]


def _capture(**changes: Any) -> CaptureStatus:
    return structs.replace(
        capturing(NOW_MS), **{"evicted": 0, "evictions": (), "shapes_refused": 0, "refused": (), **changes}
    )


def _gap() -> ProgramStatus:
    status = writing(NOW_MS, snapshots=None)
    return structs.replace(
        status, sources=(structs.replace(status.sources[0], gap_count=1, gaps=(ShapeNote(_SHAPE, _WHY),)),)
    )


def _failed() -> ProgramStatus:
    failure = ShapeFailure("s", _SHAPE, "public.events", _WHY, 90, NOW_MS - 1_000_000, NOW_MS)
    return snapshotting(NOW_MS, failed_shapes=1, failures=(failure,))


STATES: Final = {
    "ended": State(
        _capture(ended=(EndedShape(_SHAPE, 1, 900, _WHY),)),
        *("shapes_ended", "flushtracker_shapes_ended", "FlushtrackerShapeEnded", (EndedShape,)),
    ),
    "evicted": State(
        _capture(
            ended=(EndedShape(_SHAPE, 1, 900, _WHY, NOW_MS - 900),),
            evicted=1,
            evictions=(Eviction(_SHAPE, NOW_MS - 900, _WHY),),
        ),
        *("shapes_evicted", "flushtracker_evictions_total", "FlushtrackerShapeEvicted", (EndedShape, Eviction)),
    ),
    "refused": State(
        _capture(shapes_refused=1, refused=(RefusedShape(_SHAPE, f"shapes.yaml line 9: shape {_SHAPE!r}: {_WHY}"),)),
        *("shapes_refused", "flushtracker_shapes_refused", "FlushtrackerShapesRefused", (RefusedShape,)),
    ),
    "waiting for a statement": State(
        _capture(waiting=(WaitingShapes("public.events", (_SHAPE,), 1, _WHY, "ALTER PUBLICATION shapes ADD …"),)),
        *("shapes_waiting", "flushtracker_shapes_waiting", "FlushtrackerShapesWaiting", (WaitingShapes,)),
    ),
    "gap": State(_gap(), "writers_gap", "flushtracker_gap_shapes", "FlushtrackerShapeGap", (ShapeNote,)),
    "snapshot failed": State(
        _failed(),
        *("snapshots_failing", "flushtracker_snapshot_shapes_failed", "FlushtrackerSnapshotFailing", (ShapeFailure,)),
    ),
}
_PASSING: Final = {Failure}
"""What passes by itself: what a job has met and survived."""


def _seen(status: ProgramStatus) -> Overview:
    found: CallResult[Any] = CallResult(NOW_MS, status)
    if isinstance(status, CaptureStatus):
        return replace(overview(), capture=found)
    return replace(overview(), others=((_URL, found),))


@pytest.mark.parametrize("name", STATES)
def test_status_prints_it_with_a_remedy_and_fails(name: str) -> None:
    state = STATES[name]
    seen = _seen(state.status)
    verdict = judge(seen, Limits())
    (problem,) = (each for each in verdict.findings if each.kind == state.kind)
    assert verdict.exit_code == 1
    lines = overview_lines(seen, verdict)
    (line,) = (line for line in lines if problem.text in line)
    assert _SHAPE in line
    assert f"remedy: {problem.remedy}" in lines
    listed = json.loads(json.dumps(status_output(seen, verdict).to_json()))["verdict"]["findings"]
    assert (state.kind, problem.remedy, 1) in [(each["kind"], each["remedy"], each["exit_code"]) for each in listed]


@pytest.mark.parametrize("name", STATES)
def test_a_metric_counts_it_an_alert_fires_on_that_and_a_panel_shows_it(name: str) -> None:
    state = STATES[name]
    _, text = metrics(state.status, NOW_MS)
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    assert sum(sample.value for sample in samples if sample.name == state.metric) >= 1
    (rule,) = (rule for rule in _RULES if rule["alert"] == state.alert)
    assert re.search(rf"\b{state.metric}\b", rule["expr"])
    assert re.search(rf"\b{state.metric}\b", _DASHBOARD)


@pytest.mark.parametrize("name", STATES)
def test_the_page_says_it_with_a_section_of_the_runbook(name: str) -> None:
    """The page capitalises the text, so it must not begin with an id."""
    state = STATES[name]
    shown = PageData(lambda: state.status, []).to_json()["conclusions"]
    (found,) = (each for each in shown if each["kind"] == state.kind)
    assert _SHAPE in found["text"]
    assert not found["text"].startswith(_SHAPE)
    assert found["section"] in RUNBOOK


def test_a_shape_that_waits_for_a_transaction_is_told_and_no_failure() -> None:
    """It is added when that has ended; those that somebody has to act on come first."""
    passing = WaitingShapes("public.a", ("a",), 1, "it waits for the end of transaction 7", None)
    verdict = judge(_seen(_capture(waiting=(passing,))), Limits())
    (problem,) = (each for each in verdict.findings if each.part == "capture")
    assert (problem.kind, verdict.exit_code) == ("shapes_waiting", 0)
    assert problem.text == "not added yet: a, on table public.a: it waits for the end of transaction 7"
    acting = WaitingShapes("public.b", tuple("bcdefghijk"), 12, "its owner is another role", "ALTER PUBLICATION p …")
    found = judge(_seen(_capture(waiting=(passing, acting))), Limits())
    assert found.exit_code == 1
    assert [each.text for each in found.findings if each.part == "capture"] == [
        "not added yet: 12 shapes, on table public.b: its owner is another role",
        problem.text,
    ]


def test_a_program_that_is_fenced_ends_and_is_told_as_silent() -> None:
    """It serves no document any more: who asks it says so, and each program has an alert of its target."""
    silent: CallResult[ProgramStatus] = CallResult(
        NOW_MS, error=StatusError(f"{_URL} does not answer (connection refused)")
    )
    verdict = judge(replace(overview(), others=((_URL, silent),)), Limits())
    assert [each.kind for each in verdict.findings if each.exit_code] == ["program_silent"]
    assert verdict.exit_code == StatusError.exit_code
    # Started again, it would fence the one that has replaced it; if something does that each time, an alert fires.
    assert "if it was fenced, another one runs" in str(verdict.findings[0].remedy)
    (flapping,) = (rule for rule in _RULES if rule["alert"] == "FlushtrackerRestarts")
    assert "flushtracker_start_timestamp_seconds" in flapping["expr"]
    assert "has been fenced" in RUNBOOK["flushtrackerrestarts"]
    targets = " ".join(rule["expr"] for rule in _RULES if "up{" in rule["expr"])
    for program in ("track|capture", "write", "snapshot", "serve"):
        assert re.search(rf"flushtracker_\(?{re.escape(program)}\)?\"}} == 0", targets), program


def test_every_kind_that_fails_for_a_shape_is_in_the_table() -> None:
    """A new conclusion about shapes with exit code 1 must have all surfaces."""
    kinds = set[str]()
    for seed in range(300):
        rng = Random(seed)  # noqa: S311  repeatable
        for status in (random_capture(rng), random_write(rng), random_snapshot(rng)):
            kinds |= {each.kind for each in program_findings(status) if each.exit_code == 1}
    assert kinds == {state.kind for state in STATES.values()}


def test_every_reason_in_a_document_is_in_the_table() -> None:
    """What a document gives a reason for, and does not pass by itself, must have all surfaces."""
    reasons = {
        each
        for status in get_args(ProgramStatus)
        for each in _documents(status)
        if {"reason", "text"} & get_type_hints(each).keys()
    }
    assert reasons - _PASSING == {each for state in STATES.values() for each in state.shown}


def _documents(kind: Any) -> Iterator[type]:
    """The classes of documents in a document's class, at any depth."""
    if isinstance(kind, type) and issubclass(kind, StatusObject):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from _documents(hint)
    for inner in get_args(kind):
        yield from _documents(inner)
