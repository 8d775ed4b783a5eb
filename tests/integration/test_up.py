"""``flushtracker up`` on a server and a broker: four lines start everything, and kills of its programs lose nothing."""

import json
import os
import re
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.local.broker import LocalBroker
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.local.postgres import LocalPostgres
from flushtracker.wal.lsn import parse_lsn
from tests.support.brokers import Broker
from tests.support.object_store import store_keys
from tests.support.processes import run_to_end
from tests.support.running_command import RunningCommand
from tests.support.running_up import DEADLINE_S, RunningUp
from tests.support.s3_server import running_s3
from tests.support.second_broker import second_broker
from tests.support.seeds import every, seeds
from tests.support.waiting import wait_until

_REPLICATED: Final = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
_KILLED: Final = ("capture", "jobs", "serve")


class Pipeline(RunningUp):
    """A table with rows, a shape on it, and the configuration of everything; ``start`` starts it."""

    def __init__(self, postgres: LocalPostgres, broker: Broker, folder: Path, prefix: str) -> None:
        super().__init__(folder)
        self.postgres = postgres
        postgres.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, state text)",
            "INSERT INTO orders SELECT i, 'old' FROM generate_series(1, 500) i",
        )
        (folder / "shapes.d").mkdir()
        (folder / "shapes.d" / "orders.yaml").write_text("id: orders\ntable: public.orders\n")
        self.port = free_ports(len(PROGRAMS))
        settings = {
            "postgres": " ".join(f"{name}={value}" for name, value in postgres.options.items()),
            "kafka": {
                "bootstrap_servers": broker.bootstrap_servers,
                "topic_prefix": prefix,
                "replication_factor": 1,
                "partitions": 2,
            },
            "storage": str(folder / "data"),
            "shapes": str(folder / "shapes.d"),
            "capture": {"intervals": {"shapes": "500 ms"}},
            "track": {"shuffle_partitions": 1, "shape_groups": 2},
            "write": {"shuffle_partitions": 1, "shape_groups": 2},
            "serve": {"listen": f"127.0.0.1:{free_port()}"},
            "status": {"listen": f"127.0.0.1:{self.port}"},
        }
        self.settings = settings
        self.write()

    def write(self, **more: object) -> None:
        self.config.write_text(json.dumps(self.settings | more))

    def rows(self) -> set[tuple[str, str]]:
        """The rows that readers of the shape see."""
        return {(row["id"], row["state"]) for row in self.read("orders")}

    def table(self) -> set[tuple[str, str]]:
        return {(str(row[0]), row[1]) for row in self.postgres.execute("SELECT id, state FROM orders")}

    def insert(self) -> int:
        """Insert a row; returns how far the server has written."""
        self.postgres.execute("INSERT INTO orders SELECT max(id) + 1, 'added' FROM orders")
        return self.written_lsn()

    def written_lsn(self) -> int:
        return parse_lsn(str(self.postgres.execute("SELECT pg_current_wal_lsn()")[0][0]))

    def wait_until_confirmed(self, written_lsn: int) -> None:
        wait_until(lambda: self.confirmed_lsn() >= written_lsn, "the slot past what was written", DEADLINE_S)

    def confirmed_lsn(self) -> int:
        return parse_lsn(str(self.postgres.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots")[0][0]))


def _pids(up: RunningCommand, program: str) -> list[int]:
    return [pid for pid, command in up.processes().items() if f"flushtracker {program} " in command]


def _wait_for_restarts(up: RunningCommand, count: int) -> None:
    wait_until(lambda: up.output().count("it is started again") >= count, f"restart {count}", DEADLINE_S)


@pytest.fixture
def pipeline(
    postgres: LocalPostgres, broker: Broker, tmp_path: Path, topic_name: Callable[[str], str]
) -> Iterator[Pipeline]:
    made = Pipeline(postgres, broker, tmp_path, topic_name("up"))
    yield made
    made.kill()


@every(3, 2)
@pytest.mark.parametrize("seed", seeds(1))
def test_kills_of_its_programs_lose_nothing_and_ctrl_c_ends_all_in_order(pipeline: Pipeline, seed: int) -> None:
    """Readers see what the table has, and nothing is confirmed that they do not see. What it prints works."""
    log = pipeline.folder / "programs.log"
    random, up = Random(seed), pipeline.start("--view", str(log))  # noqa: S311  a seed
    up.wait_for("everything runs: ")
    printed = re.findall(r"flushtracker up: what holds the slot: flushtracker (.*)", up.output())
    status = run_to_end([sys.executable, "-m", "flushtracker", *shlex.split(printed[0])], timeout=DEADLINE_S)
    assert status.returncode == 0, status.stdout + status.stderr
    up.wait_for("every shape has its rows: ")
    url = re.findall(r"every shape has its rows: (\S+)", up.output())[0]
    up.wait_for("retained WAL in the last minute: ")
    assert "capturing source=" in log.read_text()
    served = run_to_end(["curl", "--silent", "--fail", url], timeout=60)
    assert served.stdout.count('"old"') == 500, served.stdout[:500]
    second = pipeline.run("up")
    assert second.returncode == 2
    fact = f"another `flushtracker up` runs with {pipeline.config}; stop it, or give this one another file"
    assert second.stderr == f"flushtracker up: {fact}\n"
    for number in range(5):
        program = random.choice(_KILLED)
        pipeline.postgres.execute(
            f"UPDATE orders SET state = 'new {number}' WHERE id % 7 = {random.randrange(7)}",  # noqa: S608  our own
            f"INSERT INTO orders VALUES ({1_000 + number}, 'added')",  # noqa: S608
            f"DELETE FROM orders WHERE id = {random.randrange(1, 500)}",  # noqa: S608
        )
        restarts = up.output().count("it is started again") + 1
        # One that was killed before may not run again yet.
        for pid in wait_until(partial(_pids, up, program), f"{program} to run", DEADLINE_S):
            os.kill(pid, signal.SIGKILL)
        _wait_for_restarts(up, restarts)
        time.sleep(random.random() * 5)
        assert up.process.poll() is None, up.output()[-3_000:]
    written = pipeline.written_lsn()
    pipeline.wait_until_confirmed(written)
    assert pipeline.rows() == pipeline.table()
    # One that was killed more than once waits before it is started again.
    for program in _KILLED:
        wait_until(partial(_pids, up, program), f"{program} to run", DEADLINE_S)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(DEADLINE_S) == 0, up.output()[-3_000:]
    up.wait_until_gone()
    stopped = re.findall(r"^flushtracker up: stopping (\w+)$", up.output(), re.MULTILINE)
    assert stopped == ["serve", "jobs", "capture"]
    said = re.findall(r"everything has stopped; slot (\w+) was confirmed up to (\S+)$", up.output(), re.MULTILINE)
    assert said[0][0] == "flushtracker"
    assert written <= parse_lsn(said[0][1]) <= pipeline.confirmed_lsn()


@every(4, 2)
def test_second_start_on_a_quiet_server_runs_as_well(pipeline: Pipeline) -> None:
    """Nothing has changed since the first one: there may be no change to write. SIGTERM stops it as Ctrl-C does."""
    for _ in range(2):
        up = pipeline.start()
        up.wait_for("every shape has its rows: ")
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(DEADLINE_S) == 0, up.output()[-3_000:]
        assert "everything runs: " in up.output()
        up.wait_until_gone()


@every(4, 1)
def test_object_store_that_goes_away_is_waited_for_and_nothing_is_lost(
    pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is confirmed meanwhile, and readers have all once it is back."""
    place, port = tmp_path_factory.mktemp("store"), free_port()
    pipeline.write(storage={"path": "s3://bucket/up", **store_keys(port)})
    with running_s3(place, port=port):
        up = pipeline.start()
        up.wait_for("every shape has its rows: ")
    written = pipeline.insert()
    # Each of them goes on asking.
    for fact in ("acks not readable", "upkeep failed, retrying", "tables cannot be looked at"):
        up.wait_for(fact)
    assert pipeline.confirmed_lsn() < written
    with running_s3(place, port=port):
        pipeline.wait_until_confirmed(written)
        assert pipeline.rows() == pipeline.table()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(DEADLINE_S) == 0, up.output()[-3_000:]
        up.wait_until_gone()


@every(4, 3)
def test_replicas_that_are_lost_hold_the_slot_until_they_are_back(
    postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """One broker of three is killed, and others lead its partitions. Then the second: too few have what is sent."""
    brokers = tmp_path_factory.mktemp("brokers")
    with ExitStack() as parts:
        first = parts.enter_context(LocalBroker(brokers / "1", settings=_REPLICATED))
        others = [parts.enter_context(second_broker(first, brokers / str(number), number)) for number in (2, 3)]
        pipeline = Pipeline(postgres, first, tmp_path, "replicated")
        parts.callback(pipeline.kill)
        kafka = {"bootstrap_servers": first.bootstrap_servers, "topic_prefix": "replicated", "partitions": 2}
        pipeline.write(kafka=kafka | {"retry_timeout": "10 s"})
        up = pipeline.start()
        up.wait_for("every shape has its rows: ")
        others[0].kill()
        pipeline.wait_until_confirmed(pipeline.insert())
        others[1].kill()
        written = pipeline.insert()
        up.wait_for("in-sync replicas, but min.insync.replicas is 2")
        assert pipeline.confirmed_lsn() < written
        for number in (2, 3):
            parts.enter_context(second_broker(first, brokers / str(number), number))
        pipeline.wait_until_confirmed(written)
        assert pipeline.rows() == pipeline.table()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(DEADLINE_S) == 0, up.output()[-3_000:]


def test_killed_up_leaves_no_program(pipeline: Pipeline) -> None:
    """Their guards end them, with what they have started."""
    up = pipeline.start()
    up.wait_for("starting jobs (track, write)")
    up.process.kill()
    up.process.wait(30)
    up.wait_until_gone()


def test_program_that_cannot_start_ends_all_with_its_reason_and_its_exit_code(pipeline: Pipeline) -> None:
    """Here the server does not answer. In JSON, each line has the program's name."""
    pipeline.write(postgres=f"host=127.0.0.1 port={free_port()} dbname=postgres user=postgres")
    up = pipeline.start("--log-format", "json")
    assert up.process.wait(DEADLINE_S) == 7, up.output()
    lines = [json.loads(line) for line in up.output().splitlines()]
    assert any(line.get("program") == "capture" and "cannot be reached" in line["message"] for line in lines)
    assert lines[-2]["message"] == "everything has stopped; nothing was confirmed"
    assert lines[-1]["message"].startswith("capture exited with 7: ")
    assert lines[-1]["exit_code"] == 7
    up.wait_until_gone()


def test_storage_that_is_away_ends_the_start_with_that(pipeline: Pipeline) -> None:
    """A job says so before it starts Spark; all others are stopped."""
    (pipeline.folder / "data").write_text("a file where the folder should be")
    up = pipeline.start()
    assert up.process.wait(DEADLINE_S) == 2, up.output()
    assert re.search(r"flushtracker up: jobs exited with 2: .*/data", up.output().splitlines()[-1])
    up.wait_until_gone()


def test_port_that_is_taken_is_named_before_anything_starts(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", pipeline.port + 2)):
        done = pipeline.run("up")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"flushtracker up: the status of write is 127.0.0.1:{pipeline.port + 2}, where nothing can be served: "
    )
    assert pipeline.postgres.execute("SELECT 1 FROM pg_replication_slots") == []
