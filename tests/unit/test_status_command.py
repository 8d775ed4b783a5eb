"""``flushtracker status`` as a command: real HTTP and a real ack table; PostgreSQL is down throughout."""

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from flushtracker.cli import main
from flushtracker.local.postgres import free_port
from flushtracker.operate.status import slot_view
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_status import Holder
from tests.support.hung_storage import silent_object_store
from tests.support.own_time import OwnTime
from tests.support.status_command import StatusCommand, Terminal
from tests.support.status_pages import (
    HELD,
    HOLDER,
    NOW_MS,
    job_page,
    job_status,
    raw_server,
    status_page,
)

REFUSED = "Connection refused"


@pytest.fixture
def command(tmp_path: Path) -> StatusCommand:
    """No server listens at its port."""
    options = {"host": "127.0.0.1", "port": str(free_port()), "dbname": "postgres", "user": "nobody"}
    return StatusCommand(tmp_path, options)


def lines_of(command: StatusCommand, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = main(command.arguments(*arguments))
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, captured.out.splitlines()


def test_stale_answer_is_told_right(command: StatusCommand, capsys: pytest.CaptureFixture[str]) -> None:
    """The last row names users-eu, which is done since; the job says orders-open. Without the job, the row is dated."""
    command.append()
    with job_page(job_status(HELD, at_ms=NOW_MS)) as url:
        code, lines = lines_of(command, capsys, "--job", url)
    assert code == 7
    assert REFUSED in lines[0]
    assert lines[1] == "ack 0/37F1C5E   last seen 0/37F1CE7   1 pending"
    assert lines[3].startswith("orders-open  ")
    assert not any("users-eu" in line for line in lines)
    code, lines = lines_of(command, capsys, "--job", url)
    assert code == 7
    assert lines[1].startswith(f"job {url} does not answer (connection refused); below is what the ack table had at ")
    assert lines[1].endswith(" s ago")
    assert lines[3].startswith("at ")
    assert "it was held by users-eu" in lines[3]


def test_job_is_found_among_the_peers_of_capture(command: StatusCommand, capsys: pytest.CaptureFixture[str]) -> None:
    """One of them is another program, and one is down."""
    other = json.dumps(CaptureStatus(1, 1, None, is_connected=False).to_json()).encode()
    with status_page(lambda: other) as capture, job_page(job_status(HELD)) as job:
        command.peers = (f"http://127.0.0.1:{free_port()}", capture, job)
        _, lines = lines_of(command, capsys)
        assert "ack 0/37F1C5E   last seen 0/37F1CE7   1 pending" in lines
        command.peers = (capture,)
        _, lines = lines_of(command, capsys)
        assert lines[1] == f"at {capture} there is no tracking job, but another program of flushtracker"


def test_two_jobs_have_a_source_each(command: StatusCommand, capsys: pytest.CaptureFixture[str]) -> None:
    """The slot's is asked for, whichever is named first."""
    command.append()
    other = job_status(HELD, at_ms=NOW_MS)
    with job_page(job_status()) as first, job_page(other) as second:
        for peers in ((first, second), (second, first)):
            command.peers = peers
            assert lines_of(command, capsys)[1][1].startswith("ack 0/37F1C5E   last seen")


def test_job_that_hangs_does_not_delay_the_rest(command: StatusCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, and says nothing."""
    command.append()
    monkeypatch.setattr(slot_view, "_STEP_S", 0.5)
    with raw_server() as port:
        with OwnTime() as own:
            assert main(command.arguments("--job", f"http://127.0.0.1:{port}")) == 7
        assert own.seconds < 4


def test_postgres_that_hangs_is_left_in_time(command: StatusCommand) -> None:
    """Its kernel accepts the connection, and no process answers; nor does the job, nor the storage of the acks."""
    with raw_server() as postgres, raw_server() as job, silent_object_store() as (_, options):
        command.connection = {**command.connection, "port": str(postgres)}
        command.acks_table, command.storage_options = "s3://bucket/acks", options
        begin = time.monotonic()
        done = command.run("--json", "--job", f"http://127.0.0.1:{job}")
        assert time.monotonic() - begin < 40
    found = json.loads(done.stdout)
    assert [each["kind"] for each in found["verdict"]["problems"]] == [
        "postgres_silent",
        "job_silent",
        "acks_unreadable",
    ]
    assert found["acks"]["error"].endswith("its storage has not answered for 10 s")
    assert (done.returncode, done.stderr) == (7, "")


def corrupt_commit(folder: Path) -> None:
    (folder / "_delta_log" / f"{1:020}.json").write_text("{")


def lose_files(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        file.unlink()


def damage_files(folder: Path) -> None:
    for file in folder.glob("*.parquet"):
        file.write_bytes(b"PAR1 no")


def lose_log(folder: Path) -> None:
    for file in (folder / "_delta_log").iterdir():
        file.unlink()


def other_table(folder: Path) -> None:
    write_deltalake(str(folder), pa.table({"x": [1]}), mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (corrupt_commit, "cannot be read: "),
        (lose_files, "cannot be read: "),
        (damage_files, "cannot be read: "),
        (lose_log, "there is no ack table at "),
        (other_table, "is a Delta table without the columns source, batch_id"),
    ],
)
def test_damaged_ack_table_is_one_line(
    command: StatusCommand, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], message: str
) -> None:
    """And what the job says is printed all the same."""
    command.append()
    damage(command.acks)
    with job_page(job_status(HELD)) as url:
        code, lines = lines_of(command, capsys, "--job", url)
        assert code == 7
        assert [message in line for line in lines].count(True) == 1
        assert "ack 0/37F1C5E   last seen 0/37F1CE7   1 pending" in lines


def test_missing_ack_table_is_not_created(command: StatusCommand, capsys: pytest.CaptureFixture[str]) -> None:
    """The command changes nothing."""
    _, lines = lines_of(command, capsys)
    assert f"there is no ack table at {command.acks}: " in lines[2]
    assert not command.acks.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--job", "localhost:9464"], "--job is not a URL such as http://127.0.0.1:9464, without credentials"),
        (["--job", "http://me:hunter2@job"], "--job is not a URL such as http://127.0.0.1:9464, without credentials"),
        (["--job", "file:///etc/passwd"], "--job is not a URL such as http://127.0.0.1:9464, without credentials"),
    ],
)
def test_address_that_is_none_is_refused(
    command: StatusCommand, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Without showing a password."""
    assert main(command.arguments(*arguments)) == 2
    assert capsys.readouterr().err == f"flushtracker status: {message}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-retained", "5"], "argument --max-retained: size '5' is not a number above zero and a unit"),
        (["--max-age", "10"], "argument --max-age: duration '10' is not a number above zero and a unit"),
        (["--watch", "0"], "argument --watch: '0' is not a whole number above zero"),
    ],
)
def test_malformed_limit_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """A number without its unit could mean anything."""
    with pytest.raises(SystemExit) as exited:
        main(["status", *arguments])
    assert exited.value.code == 2
    assert message in capsys.readouterr().err


def test_missing_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert "conf/capture.yaml cannot be read: No such file" in capsys.readouterr().err


def test_watch_through_a_pipe_prints_blocks_and_ends_cleanly(command: StatusCommand) -> None:
    """A blank line separates them; Ctrl-C ends it with 0, and no traceback."""
    command.append()
    with job_page(job_status(HELD)) as url:
        process = command.start("--watch", "1", "--job", url)
        assert process.stdout is not None
        assert process.stderr is not None
        seen: list[str] = []
        while sum(line.startswith("ack ") for line in seen) < 2:
            seen.append(process.stdout.readline().rstrip("\n"))
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    first, second, *_ = "\n".join([*seen, rest]).split("\n\n")
    assert first.splitlines()[1] == second.splitlines()[1] == "ack 0/37F1C5E   last seen 0/37F1CE7   1 pending"
    assert "\x1b" not in first + second


def test_watch_as_json_is_a_line_for_each_look(command: StatusCommand) -> None:
    """For a program that reads lines."""
    process = command.start("--watch", "1", "--json")
    assert process.stdout is not None
    documents: list[dict[str, Any]] = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert documents[0]["at_ms"] < documents[1]["at_ms"]


def test_reader_may_leave_at_any_time(command: StatusCommand) -> None:
    """As `head` does; no traceback."""
    process = command.start("--watch", "1")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


def test_watch_in_a_terminal_redraws_in_place_and_leaves_the_last_look(command: StatusCommand) -> None:
    """With 80 columns and an id of 60, nothing goes beyond the last column. The screen is never cleared as a whole."""
    command.append()
    long = "orders-of-the-european-region-by-customer-and-day-of-the-year"[:60]
    holders = (Holder(long, NOW_MS, 1, 12_345_678, HOLDER.ack_if_removed), HOLDER)
    with job_page(job_status(replace(HELD, holders=holders, pending_shapes=2))) as url:
        terminal = Terminal(*command.arguments("--watch", "1", "--job", url))
        terminal.read_until("orders-open  ", times=2)
        assert terminal.interrupt() == 0
    assert terminal.text.startswith("\x1b[?1049h\x1b[?25l")
    drawn, _, left = terminal.text.partition("\x1b[?25h\x1b[?1049l")
    assert "\x1b[2J" not in drawn
    assert drawn.count("\x1b[H") >= 2
    rows = [row for row in left.replace("\r", "").split("\n") if not row.startswith(("remedy", "PostgreSQL"))]
    assert long in rows
    assert max(map(len, rows)) <= 80
    assert os.linesep not in drawn.replace("\r\n", "")
