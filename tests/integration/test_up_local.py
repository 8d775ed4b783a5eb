"""``flushtracker up`` with a server and a broker of its own, for a configuration as ``init`` writes it."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from flushtracker.config.starting_config import config_text
from flushtracker.errors import PostgresError
from flushtracker.local.free_ports import free_port
from flushtracker.postgres.connection import connect, rows
from tests.support.processes import run_to_end
from tests.support.running_up import DEADLINE_S, RunningUp
from tests.support.seeds import every
from tests.support.status_program import get_json
from tests.support.waiting import wait_until

_LOCAL: Final = ("--with-kafka", "--with-postgres")


class Newcomer(RunningUp):
    """A configuration for servers that do not exist yet, and an empty folder of shapes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        (folder / "shapes.d").mkdir()
        postgres = f"postgresql://capture@localhost:{self.port}/shop"
        text = config_text(postgres, f"localhost:{free_port()}", str(folder / "data"), str(folder / "shapes.d"))
        self.config.write_text(
            f"{text}serve: {{listen: '127.0.0.1:{free_port()}'}}\nstatus: {{listen: '127.0.0.1:0'}}\n"
        )

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        options = {"host": "127.0.0.1", "port": str(self.port), "user": "capture", "dbname": "shop"}
        with closing(connect(options)) as connection:
            return rows(connection, statement)

    def inserts_fourth(self) -> bool:
        """Whether the server, which may be starting, has taken a row."""
        try:
            self.execute("INSERT INTO public.orders VALUES (4)")
        except PostgresError:
            return False
        return True

    def ids(self) -> list[str]:
        """The ids that readers of the shape see, sorted; none while they cannot read it."""
        return sorted(row["id"] for row in self.read("orders"))


@pytest.fixture
def newcomer(postgres_folder: Path) -> Iterator[Newcomer]:
    made = Newcomer(postgres_folder)
    yield made
    made.kill()


@every(4, 0)
def test_with_a_broker_and_a_server_everything_runs_and_what_they_have_is_kept(newcomer: Newcomer) -> None:
    """From an empty database; one page has all programs, although no port is said.

    A killed broker and a killed server are started again.
    """
    up = newcomer.start(*_LOCAL)
    up.wait_for("all programs on one page: ")
    newcomer.execute("CREATE TABLE public.orders (id int PRIMARY KEY)")
    newcomer.execute("INSERT INTO public.orders VALUES (1), (2)")
    shape = newcomer.folder / "orders.yaml"
    shape.write_text("id: orders\ntable: public.orders\n")
    added = newcomer.run("add-shape", str(shape))
    assert added.returncode == 0, added.stderr
    wait_until(lambda: newcomer.ids() == ["1", "2"], "the rows of before", DEADLINE_S)
    page = re.findall(r"all programs on one page: (\S+)", up.output())[0]
    data = get_json(f"{page}page.json")
    shown = [data["status"]["program"], *(each["status"]["program"] for each in data["peers"])]
    assert sorted(shown) == ["capture", "serve", "track", "write"]
    printed = re.findall(r"what holds the slot: (FLUSHTRACKER_STATUS_PORT=\d+) flushtracker (.*)", up.output())[0]
    name, _, value = printed[0].partition("=")
    command = [sys.executable, "-m", "flushtracker", *shlex.split(printed[1])]
    status = run_to_end(command, env=os.environ | {name: value}, timeout=DEADLINE_S)
    assert status.returncode == 0, status.stdout + status.stderr
    os.kill(up.pid_of("kafka.Kafka"), signal.SIGKILL)
    up.wait_for("Kafka has exited; it is started again")
    newcomer.execute("INSERT INTO public.orders VALUES (3)")
    wait_until(lambda: newcomer.ids() == ["1", "2", "3"], "a row of after the broker's kill", DEADLINE_S)
    os.kill(up.pid_of("bin/postgres -D"), signal.SIGKILL)
    up.wait_for("PostgreSQL has exited; it is started again")
    wait_until(newcomer.inserts_fourth, "a row of after the server's kill", DEADLINE_S)
    wait_until(lambda: newcomer.ids() == ["1", "2", "3", "4"], "readers to see that row", DEADLINE_S)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(DEADLINE_S) == 0, up.output()[-3_000:]
    up.wait_until_gone()
    stopped = re.findall(r"^flushtracker up: stopping (\w+)$", up.output(), re.MULTILINE)
    assert stopped == ["serve", "jobs", "capture", "Kafka", "PostgreSQL"]
    again = newcomer.start(*_LOCAL)
    again.wait_for("capture is ready")
    assert newcomer.execute("SELECT count(*) FROM public.orders") == [(4,)]
    assert f"starting Kafka; its data is kept in {newcomer.folder / 'local' / 'kafka'}" in again.output()


def test_ctrl_c_while_the_broker_is_started_ends_all_at_once(newcomer: Newcomer) -> None:
    """As it does while jars are fetched, which may take minutes."""
    up = newcomer.start(*_LOCAL)
    up.wait_for("starting Kafka")
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(DEADLINE_S) == 0, up.output()
    assert up.output().splitlines()[-2:] == [
        "flushtracker up: everything has stopped; nothing was confirmed",
        "flushtracker up: stopped during startup",
    ]
    assert "starting track" not in up.output()
    up.wait_until_gone()
