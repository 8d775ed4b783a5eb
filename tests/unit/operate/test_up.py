"""``flushtracker up`` without its programs: its log, when everything runs, and what it refuses before it starts."""

import json
import os
import socket
from io import StringIO
from pathlib import Path

import pytest
from msgspec import structs

from flushtracker.cli import main
from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.one_file import STATUS_PORT_VARIABLE, read_config
from flushtracker.errors import ConfigError
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.operate.up import pipeline
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

_PLACES: dict[str, str] = {"postgres": "host=nowhere.invalid", "kafka": "nowhere.invalid:1"}


def test_each_line_has_the_name_of_its_program() -> None:
    """As text in a column; in JSON as a field, also of what is no JSON itself."""
    text = ProgramLog("text", output := StringIO())
    text.show("track", "ack advanced")
    text.show("capture", "capturing")
    assert output.getvalue() == "track    ack advanced\ncapture  capturing\n"
    log = ProgramLog("json", output := StringIO())
    for line in ('{"message": "batch done", "level": "INFO"}', "WARNING: Using incubator modules", "[1]"):
        log.show("write", line)
    found = [json.loads(line) for line in output.getvalue().splitlines()]
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
        ("serve: {listen: '127.0.0.1:0'}\n", ": serve.listen has port 0; clients of `flushtracker up` need one"),
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


@pytest.mark.parametrize(
    ("settings", "option", "fact"),
    [
        ({}, "--with-kafka", "is 'nowhere.invalid:1'; --with-kafka needs one broker, such as localhost:9092"),
        (
            {"kafka": "localhost:29092"},
            "--with-kafka",
            "kafka.replication_factor is 3, but --with-kafka runs one broker; set it to 1",
        ),
        ({}, "--with-postgres", "has the host 'nowhere.invalid'; --with-postgres needs localhost or 127.0.0.1"),
        ({"postgres": "dbname=app"}, "--with-postgres", "has the host ''; --with-postgres needs localhost"),
        ({"postgres": "host=localhost,db port=1,2"}, "--with-postgres", "has the host 'localhost,db'; --with-postgres"),
    ],
)
def test_local_services_are_only_where_the_file_says_that_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, str], option: str, fact: str
) -> None:
    """What the file has elsewhere is not this machine's."""
    path = tmp_path / "flushtracker.yaml"
    path.write_text(json.dumps({"storage": "data", "shapes": "shapes.d", **_PLACES, **settings}))
    assert main(["up", option, "--config", str(path)]) == 2
    assert fact in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


def test_port_of_a_local_service_that_is_taken_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flushtracker.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        postgres = f"postgresql://localhost:{port}/app"
        path.write_text(json.dumps({"storage": "data", "shapes": "shapes.d", **_PLACES, "postgres": postgres}))
        assert main(["up", "--with-postgres", "--config", str(path)]) == 2
    fact = f"flushtracker up: postgres is 127.0.0.1:{port}, where nothing can be served: Address already in use; "
    assert capsys.readouterr().err.startswith(fact)
    assert list(tmp_path.iterdir()) == [path]


def test_local_server_that_cannot_run_is_named_with_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where this user may not write; what has not started is not stopped."""
    path, folder = tmp_path / "flushtracker.yaml", tmp_path / "local"
    settings = {"postgres": f"postgresql://localhost:{free_port()}/app", "track": False, "write": False}
    status = {"listen": f"127.0.0.1:{free_ports(len(PROGRAMS))}"}
    listening = {"serve": {"listen": f"127.0.0.1:{free_port()}"}, "status": status}
    path.write_text(json.dumps({"storage": "data", "shapes": "shapes.d", **_PLACES, **settings, **listening}))
    folder.write_text("a file where the folder should be")
    assert main(["up", "--with-postgres", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    fact = f"flushtracker up: the local server cannot run in {folder / 'postgres'}: [Errno 20] Not a directory: "
    assert said.splitlines()[-1].startswith(fact)
    assert "stopping PostgreSQL" not in said


def test_ports_that_the_file_leaves_open_are_chosen_once_for_all_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, nobody is asked for a status; with ``up``, all commands that have its variable find all."""
    monkeypatch.delenv(STATUS_PORT_VARIABLE, raising=False)
    path = tmp_path / "flushtracker.yaml"
    path.write_text(FOUR + "status: {listen: '127.0.0.1:0', urls: {write: 'http://job:1'}}\n")
    alone = read_config(path).status("capture")
    assert alone is not None
    assert alone.peers == ("http://job:1",)
    monkeypatch.setenv(STATUS_PORT_VARIABLE, "")
    pipeline._choose_ports(read_config(path))
    first = int(os.environ[STATUS_PORT_VARIABLE])
    file = read_config(path)
    of_capture, of_serve = file.status("capture"), file.status("serve")
    assert of_capture is not None
    assert of_serve is not None
    assert (of_capture.listen_port, of_serve.listen_port) == (first + 1, first + 4)
    assert of_serve.peers == (f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}", "http://job:1")
    assert list(pipeline._commands(file, path))[1:] == [
        f"what holds the slot: {STATUS_PORT_VARIABLE}={first} flushtracker status --config {path}",
        f"all programs on one page: http://127.0.0.1:{first}/",
    ]
    monkeypatch.setenv(STATUS_PORT_VARIABLE, "nine")
    with pytest.raises(ConfigError, match="the environment variable FLUSHTRACKER_STATUS_PORT is not a port"):
        file.status("capture")


def test_jobs_share_a_process_unless_one_has_its_own_settings_of_spark(tmp_path: Path) -> None:
    """Or there is only one of them here."""
    path = tmp_path / "flushtracker.yaml"

    def processes(more: str) -> list[str]:
        path.write_text(FOUR + more)
        return list(pipeline._processes(read_config(path)))

    assert processes("spark: {spark.driver.memory: 2g}\n") == ["jobs", "capture", "serve"]
    assert processes("write: {spark: {spark.driver.memory: 2g}}\n") == ["track", "capture", "write", "serve"]
    assert processes("track: false\n") == ["capture", "write", "serve"]
