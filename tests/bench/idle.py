"""What ``flushtracker up`` takes while nothing happens: with both jobs in one Spark application, and in two."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.local.broker import LocalBroker
from flushtracker.local.free_ports import free_port, free_ports
from flushtracker.local.postgres import LocalPostgres
from tests.bench.cpu import cpu_seconds, descendants, process_name, proportional_mb
from tests.bench.measure import Table

_TABLE: Final = (
    "CREATE TABLE orders (id int PRIMARY KEY, state text)",
    "INSERT INTO orders SELECT i, 'new' FROM generate_series(1, 500) i",
)
_WAYS: Final[Mapping[str, Mapping[str, object]]] = {
    "one application": {},
    "two applications": {"write": {"spark": {"spark.ui.enabled": "false"}}},
}
_START_S: Final = 600
_SETTLED_S: Final = 120
"""Spark ends Python workers that had no task for a minute."""
_MEASURED_S: Final = 60


def tables(*, quick: bool = False) -> Iterator[Table]:
    """One table; ``quick`` is not for benches with Spark."""
    assert not quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # The server runs as another user.
        rows = [[way, *_measured(folder / way.partition(" ")[0], more)] for way, more in _WAYS.items()]
    header = ["both jobs as", "until every shape has its rows", "memory", "of it JVMs", "of a core"]
    yield Table("flushtracker up with one shape, idle", header, rows)


def _measured(folder: Path, more: Mapping[str, object]) -> list[str]:
    folder.mkdir()
    with LocalPostgres(folder / "server") as server, LocalBroker(folder / "broker") as broker:
        server.execute(*_TABLE)
        (folder / "shapes.d").mkdir()
        (folder / "shapes.d" / "orders.yaml").write_text("id: orders\ntable: public.orders\n")
        config = {
            "postgres": dict(server.options),
            "kafka": {"bootstrap_servers": broker.bootstrap_servers, "replication_factor": 1},
            "storage": str(folder / "data"),
            "shapes": str(folder / "shapes.d"),
            "serve": {"listen": f"127.0.0.1:{free_port()}"},
            "status": {"listen": f"127.0.0.1:{free_ports(len(PROGRAMS))}"},
        }
        (folder / "flushtracker.yaml").write_text(json.dumps({**config, **more}))
        command = [sys.executable, "-m", "flushtracker", "up", "--config", str(folder / "flushtracker.yaml")]
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as up:
            try:
                return _figures(up, folder / "log")
            finally:
                up.terminate()


def _figures(up: "subprocess.Popen[bytes]", log: Path) -> list[str]:
    begun = time.monotonic()
    while "every shape has its rows" not in log.read_text():
        if up.poll() is not None or time.monotonic() - begun > _START_S:
            raise OSError(f"flushtracker up does not run:\n{log.read_text()[-2_000:]}")
        time.sleep(0.5)
    started_s = time.monotonic() - begun
    time.sleep(_SETTLED_S)
    used_s = cpu_seconds(up.pid)
    time.sleep(_MEASURED_S)
    share = (cpu_seconds(up.pid) - used_s) / _MEASURED_S
    sizes = [_megabytes(pid) for pid in descendants(up.pid)]
    memory, of_jvms = sum(size for _, size in sizes), sum(size for is_jvm, size in sizes if is_jvm)
    return [f"{started_s:.0f} s", f"{memory:,.0f} MB", f"{of_jvms:,.0f} MB", f"{share:.2f}"]


def _megabytes(pid: int) -> tuple[bool, float]:
    """Whether the process is a JVM, and its proportional set size."""
    with suppress(OSError):  # It may have ended since.
        return process_name(pid) == "java", proportional_mb(pid)
    return False, 0.0
