"""The parts of ``make demo`` that need no server and no broker."""

import random
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.job_config import load_config
from flushtracker.config.status_config import StatusConfig
from flushtracker.demo.demo_folder import demo_folder
from flushtracker.demo.samples import Sample, bars
from flushtracker.demo.startup import Startup
from flushtracker.demo.view import History, render, view
from flushtracker.demo.workload import transactions
from flushtracker.errors import ConfigError
from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.shapes.shapes_file import load_shapes
from flushtracker.status.job_status import Holder, SourceStatus
from tests.support.processes import has_ended
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def test_workload_is_the_same_each_time_and_has_a_large_transaction() -> None:
    """The load is steady, so that any movement in the view comes from the writers."""
    first, second = (list(islice(transactions(random.Random(1)), 100)) for _ in range(2))  # noqa: S311  a workload
    assert first == second
    assert ["generate_series" in text for text in first] == [False] * 99 + [True]


def test_shapes_of_the_demo_have_one_slow_writer() -> None:
    """It is the one whose WAL grows and shrinks in the view."""
    intervals = {
        shape.id: shape.flush.interval_ms or 0 for shape in load_shapes(ROOT / "flushtracker/demo/conf/shapes.yaml")
    }
    slowest = max(intervals, key=lambda shape_id: intervals[shape_id])
    assert slowest == "audit-archive"
    assert all(4 * interval < intervals[slowest] for shape_id, interval in intervals.items() if shape_id != slowest)


def test_tracker_and_capture_of_the_demo_show_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of the one has what the other knows; the demo chooses the ports."""
    variables = {"STATUS_PORT": "9464", "CAPTURE_PORT": "9465", "POSTGRES_PORT": "5432", "KAFKA": "one:9092"}
    for name, value in variables.items():
        monkeypatch.setenv(f"FLUSHTRACKER_DEMO_{name}", value)
    monkeypatch.setenv("FLUSHTRACKER_DEMO", "data/demo")
    tracker = load_config(ROOT / "flushtracker/demo/conf/tracker.yaml").status
    capture = load_capture_config(ROOT / "flushtracker/demo/conf/capture.yaml").status
    assert tracker == StatusConfig("127.0.0.1", 9464, ("http://127.0.0.1:9465",))
    assert capture == StatusConfig("127.0.0.1", 9465, ("http://127.0.0.1:9464",))


def sample(**fields: object) -> Sample:
    since = NOW - timedelta(seconds=90)
    holder = Holder("a[b]", int(since.timestamp() * 1000), 1, held_bytes=0x1000, ack_if_removed=0x2000)
    tracked = SourceStatus("s", 0x1000, 0x2000, 2, 1, 0, (holder,))
    known = {
        "received_lsn": 0x2F00,
        "confirmed_lsn": 0x1001,
        "restart_lsn": 0x800,
        "ack_lsn": 0x1000,
        "tracked": tracked,
    }
    return Sample(**{"at": NOW, "written_lsn": 0x3000, **known, **fields})  # type: ignore[arg-type]  # fields by name


def test_line_shows_every_position_and_the_blocking_shape() -> None:
    """The line replaces the view without a terminal; unknown values are dashes."""
    assert sample().line() == (
        "written=0/3000 received=0/2F00 acknowledged=0/1000 confirmed_flush_lsn=0/1001 retained=10.2 kB "
        "blocking_shape=a[b] for 1.5 min"
    )
    nothing = sample(received_lsn=None, confirmed_lsn=None, restart_lsn=None, ack_lsn=None, tracked=None)
    assert nothing.line() == (
        "written=0/3000 received=– acknowledged=– confirmed_flush_lsn=– retained=0 B blocking_shape=unknown"
    )
    caught_up = SourceStatus("s", 0x3000, 0x3000, 0, 0, None, ())
    assert sample(tracked=caught_up).line().endswith(" blocking_shape=–")


def test_start_of_the_demo_is_told_step_by_step(tmp_path: Path) -> None:
    """What has started is said once; what is waited for is said again every ten seconds."""
    said, now_s = list[str](), [100.0]
    startup = Startup(tmp_path, said.append, lambda: now_s[0])

    def told(seconds: float, *, has_ack: bool = False) -> list[str]:
        now_s[0] += seconds
        startup.check(has_ack=has_ack)
        lines = said[:]
        said.clear()
        return lines

    startup.say("starting PostgreSQL")
    assert told(4) == ["[0 s] starting PostgreSQL"]
    (tmp_path / "capture.log").write_text("2026 INFO capturing source=s\n")
    assert told(1) == ["[5 s] capture reads the slot"]
    assert told(9) == []
    assert told(1) == ["[15 s] waiting for tracker, writers, the first ack"]
    (tmp_path / "tracker.log").write_text('{"message": "query started checkpoint=c"}\n')
    (tmp_path / "writers.log").write_text("2026 INFO query started checkpoint=c\n")
    assert told(5) == [
        "[20 s] the tracker's Spark has started, and reads from Kafka",
        "[20 s] the writers' Spark has started, and reads from Kafka",
    ]
    assert told(2, has_ack=True) == [
        "[22 s] first ack: from here on, the slot is confirmed",
        "[22 s] everything runs",
    ]
    assert told(60) == []


def test_table_shows_what_the_line_does() -> None:
    """A shape's name is not read as markup."""
    history = History()
    history.add(sample(written_lsn=0x2000))
    history.add(sample(at=NOW + timedelta(seconds=2)))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(render(history))
    text = captured.get()
    for part in (
        "0/3000",
        "0/2F00",
        "0/1000",
        "0/1001",
        "0/800",
        "a[b] for 1.5 min",
        "10.2 kB",
        "4.10 kB written in 2",
    ):
        assert part in text


def test_live_view_draws_in_a_terminal_and_prints_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere, samples of one second become one line; in a terminal, each is drawn over the last."""
    for is_terminal in (False, True):
        console = Console(force_terminal=is_terminal, width=100)
        with view(console) as show:
            for ms in (0, 500, 1000):
                show(sample(at=NOW + timedelta(milliseconds=ms)))
        shown = capsys.readouterr().out
        assert shown.count("written=0/3000") == (0 if is_terminal else 2)
        assert ("confirmed_flush_lsn of the slot" in shown) == is_terminal


def test_bars_of_nothing_are_flat() -> None:
    """Before the slot exists, nothing is retained."""
    assert bars([0, 0]) == "▁▁"
    assert bars([]) == ""


def test_folder_is_emptied_of_an_earlier_demo_and_of_nothing_else(tmp_path: Path) -> None:
    """A folder with other files in it is refused."""
    folder = tmp_path / "data" / "demo"
    with demo_folder(folder):
        (folder / "server").mkdir()
        (folder / "server" / "file").touch()
        (folder / "capture.log").touch()
    with demo_folder(folder):
        assert [path.name for path in folder.iterdir()] == ["demo.lock"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").touch()
    with pytest.raises(ConfigError, match="mine has files that are not from a demo"), demo_folder(mine):
        pass
    assert (mine / "thesis").exists()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second would delete the data of the first."""
    with (
        demo_folder(tmp_path),
        pytest.raises(ConfigError, match=r"another demo is running in .*; stop it"),
        demo_folder(tmp_path),
    ):
        pass


def test_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """The message says what to do."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"the demo cannot use .*; name another folder"),
        demo_folder(tmp_path / "file"),
    ):
        pass


def child(folder: Path, program: str) -> GuardedProcess:
    return GuardedProcess("capture", [sys.executable, "-c", program], log=folder / "log", env={})


@pytest.mark.parametrize(
    ("program", "fact", "exit_code"),
    [
        ("import sys; print('one'); print('the reason\\n'); sys.exit(6)", "exited with 6: the reason;", 6),
        ("import os; os.kill(os.getpid(), 9)", "exited with 137: no output;", 137),
        ("print('done')", "exited with 1: done;", 1),
    ],
)
def test_child_that_exits_unasked_is_reported_with_its_last_line(
    tmp_path: Path, program: str, fact: str, exit_code: int
) -> None:
    """An exit without an error is a failure too if the child was not stopped."""
    process = child(tmp_path, program)
    failure = wait_until(process.failure, "the child's exit", 30)
    process.stop()
    assert fact in str(failure)
    assert failure.exit_code == exit_code


def test_stopping_a_child_ends_its_whole_group(tmp_path: Path) -> None:
    """Processes that the child started, and did not stop itself, end too."""
    program = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    process = child(tmp_path, program)
    log = tmp_path / "log"
    wait_until(lambda: log.read_text().endswith("\n"), "the grandchild's process id", 30)
    process.stop()
    # A killed process is still there for a moment, and stopping waits only for the child.
    wait_until(lambda: has_ended(int(log.read_text())), "the grandchild's end", 30)


def test_first_signal_requests_the_stop_and_later_ones_change_nothing() -> None:
    """During startup the first also interrupts; a second Ctrl-C must not cut the shutdown short."""
    program = """
import os, signal
from flushtracker.process.program import StopRequest
stop = StopRequest()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    print("made", stop.is_made)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "made True\n")
