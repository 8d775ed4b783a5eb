"""``flushtracker status`` as a command: real HTTP and a real ack table; PostgreSQL is down throughout."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from flushtracker.cli import main
from flushtracker.local.free_ports import free_port
from flushtracker.operate.status import slot_view
from flushtracker.status.capture_status import CaptureStatus
from tests.support.own_time import OwnTime
from tests.support.status_command import StatusCommand
from tests.support.status_pages import (
    HELD,
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
