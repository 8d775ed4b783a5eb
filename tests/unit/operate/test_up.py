"""``flushtracker up`` without its programs: its log, when everything runs, and what it refuses before it starts."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from flushtracker.cli import main
from flushtracker.config.one_file import read_config
from flushtracker.operate.up import program
from flushtracker.operate.up import readiness as module
from flushtracker.operate.up.program_log import ProgramLog
from flushtracker.operate.up.readiness import Readiness
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.write_status import SourceShapes, WriteStatus, WrittenSource
from tests.support.slot_overviews import slot

FOUR: str = "postgres: host=nowhere.invalid\nkafka: nowhere.invalid:1\nstorage: data\nshapes: shapes.d\n"


def test_each_line_has_the_name_of_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    """As text in a column; in JSON as a field, also of what is no JSON itself."""
    text = ProgramLog("text")
    text.show("track", "ack advanced")
    text.show("capture", "capturing")
    assert capsys.readouterr().err == "track    ack advanced\ncapture  capturing\n"
    log = ProgramLog("json")
    for line in ('{"message": "batch done", "level": "INFO"}', "WARNING: Using incubator modules", "[1]"):
        log.show("write", line)
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert found[0] == {"message": "batch done", "level": "INFO", "program": "write"}
    assert [(each["message"], each["program"]) for each in found[1:]] == [
        ("WARNING: Using incubator modules", "write"),
        ("[1]", "write"),
    ]


def test_everything_runs_once_a_first_batch_was_written_and_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when all programs answer, and not by an ack from before."""
    answers: dict[str, ProgramStatus] = {}
    monkeypatch.setattr(module, "_ask", answers.get)
    ready = Readiness({name: name for name in ("track", "capture", "write", "serve")})

    def look() -> list[str]:
        ready.look()
        return list(ready.news())

    assert ready.may_start("capture")
    assert not any(map(ready.may_start, ("track", "write", "serve")))
    assert look() == []
    at_start: SlotStatus = slot(written_lsn=5_000)
    capture = CaptureStatus(0, 0, "s", is_connected=True, slot=at_start, acknowledged_lsn=900)
    answers["capture"] = capture
    assert look() == ["capture is ready"]
    assert [ready.may_start(name) for name in ("track", "write", "serve")] == [True, True, False]
    answers["track"] = JobStatus(0, 0, is_ready=True)
    lacks = SourceShapes(1, without_snapshot_count=1)
    answers["write"] = WriteStatus(0, 0, is_ready=False, sources=(WrittenSource("s", shapes=lacks),))
    assert look() == ["track is ready"]
    assert ready.may_start("serve")
    assert not ready.has_rows
    answers["write"] = WriteStatus(0, 0, is_ready=True, sources=(WrittenSource("s", shapes=SourceShapes(1)),))
    answers["serve"] = ServeStatus(0, 0, not_ready_because=None)
    assert look() == ["write is ready", "serve is ready"]
    assert not ready.is_complete
    answers["capture"] = structs.replace(capture, slot=slot(written_lsn=9_000), acknowledged_lsn=4_998)
    assert look() == []
    answers["capture"] = structs.replace(capture, acknowledged_lsn=5_000, confirmed_lsn=5_001)
    assert look() == ["first batch acknowledged: from here on, the slot is confirmed"]
    assert ready.is_complete
    assert ready.has_rows
    assert ready.confirmed_lsn == 5_001


def test_what_is_waited_for_is_said_every_ten_looks_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, ProgramStatus] = {
        "track": JobStatus(0, 0, is_ready=False),
        "serve": ServeStatus(0, 0, not_ready_because="the storage does not answer"),
    }
    monkeypatch.setattr(module, "_ask", answers.get)
    ready = Readiness({"track": "track", "serve": "serve", "write": "write"})
    said = list[str]()
    for _ in range(20):
        ready.look()
        said += ready.news()
    assert said == ["waiting for track, serve (the storage does not answer), write"] * 2
    for name in ("track", "write"):
        answers[name] = JobStatus(0, 0, is_ready=True)
    answers["serve"] = ServeStatus(0, 0, not_ready_because=None)
    said.clear()
    for _ in range(10):
        ready.look()
        said += ready.news()
    assert said == ["track is ready", "serve is ready", "write is ready", "waiting for the rows of new shapes"]


@pytest.mark.parametrize(
    ("more", "fact"),
    [
        ("status: false\n", "line 5: status is false, but `flushtracker up` asks the programs for their status"),
        ("track: {trigger: available_now}\n", ": track.trigger is available_now; `flushtracker up` needs an interval"),
        ("status: {listen: '127.0.0.1:0'}\n", ": status.listen has port 0; `flushtracker up` needs one"),
        (
            "capture: false\ntrack: false\nwrite: false\nserve: false\n",
            "has no program to run: all are false",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, fact: str
) -> None:
    path = tmp_path / "flushtracker.yaml"
    path.write_text(FOUR + more)
    assert main(["up", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"flushtracker up: {path}")
    assert fact in said


def test_jobs_share_a_process_unless_one_has_its_own_settings_of_spark(tmp_path: Path) -> None:
    """Or there is only one of them here."""
    path = tmp_path / "flushtracker.yaml"

    def processes(more: str) -> list[str]:
        path.write_text(FOUR + more)
        return list(program._processes(read_config(path)))

    assert processes("spark: {spark.driver.memory: 2g}\n") == ["jobs", "capture", "serve"]
    assert processes("write: {spark: {spark.driver.memory: 2g}}\n") == ["track", "capture", "write", "serve"]
    assert processes("track: false\n") == ["capture", "write", "serve"]
