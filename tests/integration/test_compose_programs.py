"""What docker-compose.yml starts, with its own configurations and tables, on this machine instead of in containers.

Server and broker are the tests' own; what is changed are addresses, and the folder of the volume.
"""

import os
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from flushtracker import read_shape
from flushtracker.delta.acks.reader import AckReader
from flushtracker.errors import FlushtrackerError
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.process.guarded_process import GuardedProcess
from tests.support.capture_rig import ROOT
from tests.support.status_program import free_port
from tests.support.waiting import wait_until

_DEADLINE_S: Final = 300.0
_PROGRAMS: Final = {  # service → command, configuration
    "capture_wal": (("capture", "--create"), "compose_capture.yaml"),
    "track_flushes": (("track",), "cluster.yaml"),
    "write_shapes": (("write",), "cluster_write.yaml"),
}


class _Composed:
    """The configurations in ``folder``, with the addresses of this machine, and the processes."""

    def __init__(self, folder: Path, server: LocalPostgres, bootstrap_servers: str) -> None:
        self.folder = folder
        self.ports = {"capture_wal": free_port(), "track_flushes": free_port()}
        self.environ = os.environ | {
            "KAFKA_BOOTSTRAP": bootstrap_servers,
            "PGHOST": server.options["host"],
            "PGPORT": server.options["port"],
            "PGUSER": server.options["user"],
            "PGPASSWORD": "unused",
        }
        self._processes: list[GuardedProcess] = []

    def config(self, service: str) -> Path:
        """The service's configuration, with this machine's addresses and the folder in place of the volume."""
        name = _PROGRAMS[service][1]
        text = (ROOT / "conf" / name).read_text()
        for other, port in self.ports.items():
            text = text.replace(f"http://{other}:9464", f"http://127.0.0.1:{port}")
        text = text.replace("0.0.0.0:9464", f"127.0.0.1:{self.ports.get(service, 0)}")
        text = text.replace("file:///data/", f"file://{self.folder}/data/")
        path = self.folder / name
        path.write_text(text)
        return path

    def start(self, service: str) -> None:
        command, _ = _PROGRAMS[service]
        whole = [sys.executable, "-m", "flushtracker", *command, "--config", str(self.config(service))]
        log = self.folder / f"{service}.log"
        self._processes.append(GuardedProcess(service, whole, log=log, env=self.environ))

    def raise_failure(self) -> None:
        for process in self._processes:
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

    def close(self) -> None:
        for process in self._processes:
            process.kill()


@pytest.fixture
def composed(tmp_path: Path, postgres: LocalPostgres) -> Iterator[_Composed]:
    """With a broker of its own, because the names of the topics are those of the files."""
    with LocalBroker(tmp_path / "broker") as broker:
        parts = _Composed(tmp_path, postgres, broker.bootstrap_servers)
        yield parts
        parts.close()


def test_everything_that_compose_starts_does_the_whole_job(composed: _Composed, postgres: LocalPostgres) -> None:
    """Tables with rows, topics, capture, both jobs and the snapshots; then a change, until it is acknowledged."""
    postgres.execute(*(ROOT / "conf/compose_tables.sql").read_text().split(";\n")[:-1])
    topics = [sys.executable, "-m", "flushtracker", "topics", "--config", "conf/compose_kafka.yaml", "--create"]
    subprocess.run(topics, cwd=ROOT, env=composed.environ, check=True, timeout=120)
    for service in _PROGRAMS:
        composed.start(service)
    for service in composed.ports:
        wait_until(lambda name=service: composed.is_ready(name), f"{service} is ready", _DEADLINE_S)  # type: ignore[misc]
    wait_until(lambda: composed.rows_of("orders") == 1_000, "the snapshot of orders", _DEADLINE_S)
    wait_until(lambda: composed.rows_of("customers") == 100, "the snapshot of customers", _DEADLINE_S)

    postgres.execute("INSERT INTO orders (customer, region, status) VALUES (1, 'eu', 'open')")
    ((written,),) = postgres.execute("SELECT pg_current_wal_lsn() - '0/0'")
    wait_until(lambda: composed.rows_of("orders") == 1_001, "the change of orders", _DEADLINE_S)
    acks = AckReader(f"file://{composed.folder}/data/acks")
    ((source,),) = postgres.execute("SELECT system_identifier::text || '/1/shapes' FROM pg_control_system()")
    wait_until(lambda: (acks.last_ack(source) or 0) >= int(written) - 1_000, "the ack", _DEADLINE_S)
