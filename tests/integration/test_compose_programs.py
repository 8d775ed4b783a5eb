"""What docker-compose.yml starts, with its own configuration and tables, on this machine instead of in containers.

Server and broker are the tests' own; what is changed are addresses, and the folder of the volume.
"""

import json
import os
import re
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from jsonschema import Draft202012Validator

from flushtracker import read_shape
from flushtracker.config.config_keys import PROGRAMS
from flushtracker.errors import FlushtrackerError
from flushtracker.local.broker import LocalBroker
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.local.postgres import LocalPostgres
from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.wal.lsn import parse_lsn
from tests.support.capture_rig import ROOT
from tests.support.processes import run_to_end
from tests.support.seeds import every
from tests.support.status_program import get_json
from tests.support.waiting import wait_until

_DEADLINE_S: Final = 300.0
_CONFIG: Final = ROOT / "deploy" / "compose" / "flushtracker.yaml"
_PROGRAMS: Final = {
    "capture_wal": ("capture", "--create"),
    "track_flushes": ("track",),
    "write_shapes": ("write",),
    "serve_shapes": ("serve",),
}
"""Service → command."""
_AT_ONCE: Final = ("capture_wal", "track_flushes", "write_shapes")
"""The server of shapes starts once the writers are healthy."""

_SCHEMAS: Final = {
    name: json.loads((ROOT / "docs" / "schemas" / f"status_{name}.json").read_text()) for name in ("write", "snapshot")
}


class _Composed:
    """The configuration in ``folder``, with the addresses of this machine, and the processes."""

    def __init__(self, folder: Path, server: LocalPostgres, bootstrap_servers: str) -> None:
        self.folder = folder
        port, self.shapes_port = free_ports(len(PROGRAMS)), free_port()
        self.ports = {service: port + PROGRAMS.index(command[0]) for service, command in _PROGRAMS.items()}
        address = f"host: {server.options['host']}, port: {server.options['port']}, user: {server.options['user']}"
        text = _CONFIG.read_text()
        for own, other in (
            ("host: postgres, user: postgres", address),
            ("file:///data ", f"file://{folder}/data "),
            ("0.0.0.0:9464", f"127.0.0.1:{port}"),
            ("0.0.0.0:9470", f"127.0.0.1:{self.shapes_port}"),
        ):
            assert own in text
            text = text.replace(own, other)
        text = re.sub(r"http://\w+:(\d+)", lambda found: f"http://127.0.0.1:{port + int(found[1]) - 9464}", text)
        config = folder / "flushtracker.yaml"
        config.write_text(text)
        self.environ = os.environ | {
            "FLUSHTRACKER_CONFIG": str(config),
            "KAFKA_BOOTSTRAP": bootstrap_servers,
            "PGPASSWORD": "unused",
        }
        self._processes: dict[str, GuardedProcess] = {}

    def start(self, service: str) -> None:
        whole = [sys.executable, "-m", "flushtracker", *_PROGRAMS[service]]
        log = self.folder / f"{service}.log"
        self._processes[service] = GuardedProcess(service, whole, log=log, env=self.environ)

    def raise_failure(self) -> None:
        for process in self._processes.values():
            if failure := process.failure():
                raise failure

    def is_ready(self, service: str) -> bool:
        """What the service's health check asks."""
        self.raise_failure()
        try:
            urlopen(f"http://127.0.0.1:{self.ports[service]}/readyz", timeout=30).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def rows_of(self, shape_id: str) -> int:
        """How many rows the shape's log gives; -1 while it cannot be read, as before its snapshot."""
        self.raise_failure()
        try:
            return int(read_shape(str(self.folder / "data" / "log"), shape_id).rows.num_rows)
        except FlushtrackerError:
            return -1

    def document(self, service: str) -> dict[str, Any]:
        """What the service says of itself."""
        return get_json(f"http://127.0.0.1:{self.ports[service]}/status.json")

    def problems(self) -> dict[str, str]:
        """The kinds and texts of what ``flushtracker status`` finds wrong."""
        command = [sys.executable, "-m", "flushtracker", "status", "--json"]
        done = run_to_end(command, cwd=ROOT, env=self.environ, timeout=120)
        assert not done.stderr, done.stderr
        return {problem["kind"]: problem["text"] for problem in json.loads(done.stdout)["verdict"]["findings"]}

    def kill(self, service: str) -> None:
        self._processes.pop(service).kill()

    def close(self) -> None:
        for service in list(self._processes):
            self.kill(service)


@pytest.fixture
def composed(tmp_path: Path, postgres: LocalPostgres) -> Iterator[_Composed]:
    """With a broker of its own, because the names of the topics are those of the files."""
    with LocalBroker(tmp_path / "broker") as broker:
        parts = _Composed(tmp_path, postgres, broker.bootstrap_servers)
        yield parts
        parts.close()


@every(6, 4)
def test_everything_that_compose_starts_does_the_whole_job(composed: _Composed, postgres: LocalPostgres) -> None:
    """Tables with rows, topics, capture, both jobs and the snapshots; then a change, until it is acknowledged."""
    postgres.execute(*(ROOT / "deploy/compose/tables.sql").read_text().split(";\n")[:-1])
    topics = [sys.executable, "-m", "flushtracker", "topics", "--create"]
    subprocess.run(topics, cwd=ROOT, env=composed.environ, check=True, timeout=120)
    for service in _AT_ONCE:
        composed.start(service)
    for service in _AT_ONCE:
        wait_until(lambda name=service: composed.is_ready(name), f"{service} is ready", _DEADLINE_S)  # type: ignore[misc]
    wait_until(lambda: composed.rows_of("orders") == 1_000, "the snapshot of orders", _DEADLINE_S)
    wait_until(lambda: composed.rows_of("customers") == 100, "the snapshot of customers", _DEADLINE_S)

    postgres.execute("INSERT INTO orders (customer, region, status) VALUES (1, 'eu', 'open')")
    ((written,),) = postgres.execute("SELECT pg_current_wal_lsn() - '0/0'")
    wait_until(lambda: composed.rows_of("orders") == 1_001, "the change of orders", _DEADLINE_S)
    acks = AckReader(f"file://{composed.folder}/data/acks")
    ((source,),) = postgres.execute("SELECT system_identifier::text || '/1/flushtracker' FROM pg_control_system()")
    wait_until(lambda: (acks.last_ack(source) or 0) >= int(written) - 1_000, "the ack", _DEADLINE_S)

    url = f"http://127.0.0.1:{composed.ports['write_shapes']}"
    wait_until(lambda: composed.document("write_shapes")["sources"], "the writers know the source", _DEADLINE_S)
    wait_until(lambda: _shapes_of_writers(composed) == (4, 0), "the writers have counted the shapes", _DEADLINE_S)
    writers = composed.document("write_shapes")
    Draft202012Validator(_SCHEMAS["write"]).validate(writers)
    (found,) = writers["sources"]
    # A transaction reaches the orders, those that are open and those of the region.
    assert (found["source"], found["gap_count"]) == (source, 0)
    assert found["rows"] >= 3
    assert parse_lsn(found["flushed_lsn"]) >= int(written) - 1_000
    assert 0 <= found["written_after_ms"] < writers["at_ms"] - writers["started_at_ms"]
    assert (writers["upkeep"]["error"], writers["failure"]) == (None, None)
    (taken,) = writers["snapshots"]["sources"]
    assert (taken["source"], taken["shapes_left"]) == (source, 0)
    with urlopen(f"{url}/metrics", timeout=30) as response:  # noqa: S310  of this machine
        lines = response.read().decode().splitlines()
    series = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in series if f'source="{source}"' not in line or 'slot="flushtracker"' not in line] == []
    composed.start("serve_shapes")
    wait_until(lambda: composed.is_ready("serve_shapes"), "the server of shapes is ready", _DEADLINE_S)
    wait_until(lambda: composed.problems() == {}, "no problem", _DEADLINE_S)
    with urlopen(f"http://127.0.0.1:{composed.shapes_port}/v1/shape?shape=orders&offset=-1", timeout=60) as response:
        rows = json.load(response)
    assert len(rows) == 1_002
    assert rows[-1]["headers"]["control"] == "up-to-date"
    composed.kill("write_shapes")
    silent = f"the writers' job or the snapshots' job {url} does not answer (connection refused)"
    assert composed.problems()["program_silent"] == silent


def _shapes_of_writers(composed: _Composed) -> tuple[int, int] | None:
    """How many shapes are live, and how many lack a snapshot."""
    (source,) = composed.document("write_shapes")["sources"]
    shapes = source["shapes"]
    return None if shapes is None else (shapes["live"], shapes["without_snapshot_count"])
