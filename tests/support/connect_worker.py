"""``ConnectWorker``: Kafka Connect on this machine, with Debezium's PostgreSQL source and JDBC sink.

``python -m tests.support.connect_worker`` fetches it, 43 MB besides the broker's jars.
"""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flushtracker.errors import BrokerError
from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.jars import BROKER_JARS
from flushtracker.local.broker import java_command
from flushtracker.local.free_ports import HOST, free_port
from flushtracker.local.local_server import LocalServer
from tests.support.waiting import wait_until

CONNECT_JARS: Final = JarSet(
    ivy_xml=Path(__file__).with_name("connect_jars.xml"),
    owner="the tests' Kafka Connect",
    megabytes=43,
    command="python -m tests.support.connect_worker",
    folder="connect/",
)
DEADLINE_S: Final = 120
# What a killed worker held is free after a session, and what a sink has stored is committed every second.
_SETTINGS: Final = {
    "plugin.discovery": "service_load",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "consumer.session.timeout.ms": "6000",
    "consumer.isolation.level": "read_committed",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}


class ConnectWorker(LocalServer):
    """A distributed worker with its log in ``folder``; not started yet.

    Its connectors are in topics that begin with ``name``, so they survive a kill. The group of a sink is ``connect-``
    and its connector's name. Records have schemas unless ``settings`` say otherwise.
    """

    def __init__(
        self, folder: Path, bootstrap_servers: str, name: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder.absolute()
        super().__init__(self._folder / "connect.log")
        self._port = free_port()
        topics = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
        own = {"bootstrap.servers": bootstrap_servers, "group.id": name, "listeners": f"http://{HOST}:{self._port}"}
        self._settings = {**_SETTINGS, **topics, **own, **(settings or {})}

    def start(self) -> None:
        """Start it, and wait until it takes connectors; does nothing if it is running."""
        if self._process is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "connect.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        java = java_command([*CONNECT_JARS.paths(), *BROKER_JARS.paths()], heap_mb=400)
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        process = self._run([*java, "-XX:TieredStopAtLevel=1", main, str(file)], signal.SIGKILL)

        def answers() -> bool:
            if process.poll() is not None:
                raise BrokerError(f"Kafka Connect has ended; the last lines of {self.log}: {self._last_lines()}")
            return self._asked("GET", "connectors") is not None

        wait_until(answers, "Kafka Connect takes connectors", DEADLINE_S)

    def stop(self) -> bool:
        return self._end(signal.SIGTERM)

    def put(self, connector: str, config: Mapping[str, str]) -> None:
        """Create the connector or change it, and wait until its tasks run."""
        wait_until(lambda: self._asked("PUT", f"connectors/{connector}/config", dict(config)), connector, DEADLINE_S)
        self.wait_running(connector)

    def wait_running(self, connector: str) -> None:
        """Wait until the connector's tasks run; fails with the trace of one that has failed."""

        def runs() -> bool:
            found = self._asked("GET", f"connectors/{connector}/status")
            states = [found["connector"], *found["tasks"]] if found else []
            failed = [each for each in states if each["state"] == "FAILED"]
            assert not failed, failed
            return len(states) > 1 and all(each["state"] == "RUNNING" for each in states)

        wait_until(runs, f"{connector} runs", DEADLINE_S)

    def delete(self, connector: str) -> None:
        """Remove the connector; what it has committed stays."""
        self._asked("DELETE", f"connectors/{connector}")

    def _asked(self, method: str, path: str, body: object = None) -> Any:
        """The answer; ``None`` while it cannot answer, or knows no such thing yet."""
        request = urllib.request.Request(
            f"http://{HOST}:{self._port}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  our own worker
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            if error.code not in {404, 409, 500, 503}:
                raise BrokerError(f"{method} {path}: {error.read().decode()}") from error
        except OSError:
            pass
        return None


if __name__ == "__main__":
    CONNECT_JARS.fetch(os.environ)
