"""``flushtracker demo`` without a terminal: all of it runs, recovers from kills, and ends."""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from flushtracker.capture.capture_config import load_capture_config
from flushtracker.config.serve_config import load_serve_config
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import parse_lsn
from tests.support.processes import run_to_end
from tests.support.running_command import RunningCommand
from tests.support.seeds import every
from tests.support.serve_client import Client, RemoteServer
from tests.support.status_program import get_json
from tests.support.waiting import wait_until

_DEADLINE_S: Final = 400
_KILLED: Final = (
    ("flushtracker jobs", "jobs exited with 137: "),
    ("kafka.Kafka", "Kafka has exited; it is started again"),
    ("bin/postgres -D", "PostgreSQL has exited; it is started again"),
    ("demo.workload", "workload exited with 137: "),
)
"""A part of the command line, and what is said when that process is killed."""


class RunningDemo(RunningCommand):
    """``flushtracker demo`` as a process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder / "demo"
        self.config = self.folder / "flushtracker.yaml"
        super().__init__(folder, self.folder, "demo", "--data", str(self.folder), *arguments)

    def capture(self) -> dict[str, Any]:
        """What capture reports; nothing before it has read its slot."""
        status = load_capture_config(self.config).status
        assert status is not None
        with suppress(OSError):
            found = get_json(f"http://{status.listen}/status.json")
            return found if found["slot"] is not None else {}
        return {}

    def run_printed(self, name: str, shape: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command as the demo prints it, or for another shape, in another terminal and another folder."""
        command = re.findall(rf"(flushtracker {name} [^;\n]*)", self.output())[-1]
        if shape is not None:
            command = f"{command.rpartition(' ')[0]} {shape}"
        return run_to_end([sys.executable, "-m", *shlex.split(command)], cwd=self.folder, timeout=_DEADLINE_S)

    def kill_part(self, part: str) -> None:
        """Kill the process with this in its command line, as a crash would."""
        os.kill(wait_until(partial(self.pids_of, part), part, _DEADLINE_S)[0], signal.SIGKILL)

    def pids_of(self, part: str) -> list[int]:
        return [pid for pid, command in self.processes().items() if part in command]

    def blocking(self) -> set[str]:
        """The shapes that have held the slot back so far."""
        return set(re.findall(r"^SHAPE +SINCE +HOLDS .*\n(\S+) ", self.output(), re.MULTILINE))

    def shapes_over_http(self) -> RemoteServer:
        return RemoteServer(
            f"http://{load_serve_config(self.folder / 'flushtracker.yaml').http.listen}/v1/shape", _DEADLINE_S
        )


async def follow_gold_customers(demo: RunningDemo) -> None:
    """Follow the shape with a subquery until all orders of a customer have entered it, and those of another one left.

    What the client has then is what the log has at the same offset.
    """
    client, server = Client({"shape": "orders-gold"}), demo.shapes_over_http()

    def customers() -> set[str]:
        return {row["customer"] for row in client.rows.values()}

    while not client.is_up_to_date:
        # The server may not have started yet, and the shape may not have its snapshot.
        with suppress(OSError):
            await client.step(server)
        await asyncio.sleep(0.1)
    begun = customers()
    while not (begun - customers() and customers() - begun):
        response = await client.step(server, live=True)
        assert response.status in {200, 409}, response.body
    while not client.is_up_to_date:
        await client.step(server)
    read = read_shape(str(demo.folder / "log"), "orders-gold", LogOffset.last_of(client.tx))
    had = [tuple(row.values()) for row in client.rows.values()]
    assert sorted(had) == sorted(tuple(row.values()) for row in read.rows.to_pylist())


@pytest.fixture
def demo(postgres_folder: Path) -> Iterator[RunningDemo]:
    running = RunningDemo(postgres_folder)
    yield running
    running.kill()


@every(3, 0)
def test_acks_and_the_slot_follow_the_workload_until_ctrl_c_stops_everything(demo: RunningDemo) -> None:
    """The whole loop: what had been written when capture started is acknowledged, then confirmed to the server."""

    def captured() -> dict[str, Any]:
        assert demo.process.poll() is None, demo.output()
        return demo.capture()

    def is_confirmed() -> bool:
        last = captured()
        if not last or last["acknowledged_lsn"] is None or last["slot"]["confirmed_lsn"] is None:
            return False
        return first < parse_lsn(last["acknowledged_lsn"]) and first < parse_lsn(last["slot"]["confirmed_lsn"])

    demo.wait_for("starting workload")
    first = parse_lsn(wait_until(captured, "capture's status", _DEADLINE_S)["slot"]["written_lsn"])
    wait_until(is_confirmed, "the slot past what was written first", _DEADLINE_S)
    demo.wait_for("s] everything runs: ")
    said = re.findall(r"^flushtracker demo: \[\d+ s\] starting (\w+)", demo.output(), re.MULTILINE)
    assert said == ["PostgreSQL", "Kafka", "track", "workload", "capture", "jobs", "serve"]
    demo.wait_for("s] every shape has its rows: ")
    demo.wait_for("added the shape orders-us")
    wait_until(lambda: "audit-archive" in demo.blocking(), "the slow shape to hold the slot back", _DEADLINE_S)
    demo.wait_for("the server writes ")
    asyncio.run(asyncio.wait_for(follow_gold_customers(demo), _DEADLINE_S))
    status = demo.run_printed("status")
    assert (status.returncode, status.stderr) == (0, "")
    assert status.stdout.startswith("slot flushtracker  active ")
    added = demo.run_printed("add-shape")
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.endswith("capture has registered it\n")
    assert len(demo.processes()) > 8
    second = run_to_end([sys.executable, "-m", "flushtracker", "up", "--config", str(demo.config)], timeout=60)
    assert second.returncode == 2
    assert "another `flushtracker up` runs with " in second.stderr
    programs = {line.partition(" ")[0] for line in (demo.folder / "programs.log").read_text().splitlines()}
    assert programs >= {"capture", "jobs", "serve"}
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(_DEADLINE_S) == 0, demo.output()
    assert demo.processes() == {}
    stopped = re.findall(r"^flushtracker demo: \[\d+ s\] stopping (.*)$", demo.output(), re.MULTILINE)
    assert stopped == ["workload", "serve", "jobs", "capture", "Kafka", "PostgreSQL"]
    # Two of them were added while it ran, and begin with snapshots, as the others do.
    assert "8 shapes: folding each log gives its query over the table" in demo.output()
    last = demo.output().splitlines()[-1]
    assert last.startswith("flushtracker demo: next: read a shape: ")
    assert last.endswith("; your own database: flushtracker init --postgres URL")
    rows = demo.run_printed("read")
    assert rows.returncode == 0, rows.stderr
    assert rows.stdout.count("\n") > 1_000
    gold = demo.run_printed("read", "orders-gold")
    assert gold.returncode == 0, gold.stderr
    assert gold.stdout.count("\n") > 100


@every(3, 1)
def test_parts_that_are_killed_are_started_again_and_the_check_passes(demo: RunningDemo) -> None:
    """Before everything runs, and while the view is shown: a program, the broker, the server and the workload."""
    demo.wait_for("starting jobs")
    demo.kill_part("flushtracker capture")
    demo.wait_for("capture exited with 137: ")
    demo.wait_for("added the shape orders-us")
    for part, said in _KILLED:
        demo.kill_part(part)
        demo.wait_for(said)
    for part, _ in _KILLED:
        wait_until(partial(demo.pids_of, part), f"{part} again", _DEADLINE_S)
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(_DEADLINE_S) == 0, demo.output()
    assert "7 shapes: folding each log gives its query over the table" in demo.output()
    assert demo.processes() == {}


def test_killed_demo_leaves_no_process(demo: RunningDemo) -> None:
    """The guards of its processes end them, including those of the server."""
    demo.wait_for("starting workload")
    demo.process.kill()
    demo.process.wait(30)
    demo.wait_until_gone()


@every(3, 2)
def test_program_that_cannot_be_started_again_ends_the_demo_with_its_last_line_and_its_exit_code(
    demo: RunningDemo,
) -> None:
    """Here it finds a configuration that it cannot read: capture, killed, or the jobs, which just start.

    The other parts are stopped in order.
    """
    demo.wait_for("starting jobs")
    demo.config.write_text("capture: {slots: 1}\n")
    demo.kill_part("flushtracker capture")
    assert demo.process.wait(_DEADLINE_S) == 2, demo.output()
    assert demo.processes() == {}
    assert demo.output().count(f"the output of all programs is in {demo.folder}/programs.log\n") == 2
    last = demo.output().splitlines()[-1]
    assert re.fullmatch(r"flushtracker demo: (?:capture|jobs) exited with 2: .*slots is not a known key.*", last)


def test_demo_that_is_stopped_during_its_start_leaves_no_process(demo: RunningDemo) -> None:
    """SIGTERM arrives when the server has started and the broker has not."""
    demo.wait_for("starting Kafka")
    demo.process.terminate()
    assert demo.process.wait(_DEADLINE_S) == 0, demo.output()
    assert demo.processes() == {}
    assert "stopped during startup" in demo.output()
