"""``LocalBroker``: a real Kafka broker on this machine, for tests and demonstrations.

One KRaft node, both broker and controller, in its own JVM, on 127.0.0.1 only. Its data, configuration and log are in
one folder. After a stop or a kill it restarts with the same data on the same port.
"""

import base64
import os
import re
import shlex
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from flushtracker.errors import BrokerError, ConfigError
from flushtracker.jvm.class_archive import broker_archive, use_archive
from flushtracker.jvm.ivy_jars import JarSet
from flushtracker.jvm.jars import BROKER_JARS
from flushtracker.jvm.java import check_java
from flushtracker.local.free_ports import HOST, free_port
from flushtracker.local.local_server import LocalServer, last_lines

_STARTED: Final = "Kafka Server started"
_START_TIMEOUT_SECONDS: Final = 120
_STOP_TIMEOUT_SECONDS: Final = 30

# One node needs one replica of everything. Log cleaning, deletion and the abort of timed-out transactions run within
# seconds, so that tests can wait for them; the first two look at all partitions each time, so not more often. Delays
# that help with many clients, such as the rebalance delay, are off. The session is short, because a killed broker
# cannot register again before its old session has expired.
_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "CLIENTS://{host}:{port},CONTROLLER://{host}:{controller_port}",
    "advertised.listeners": "CLIENTS://{host}:{port}",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENTS",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "{host}:{controller_port}",
    "log.dirs": "{data}",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "0",
    "log.retention.check.interval.ms": "5000",
    "log.cleaner.backoff.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "broker.heartbeat.interval.ms": "700",
    "broker.session.timeout.ms": "2000",
    # By default the controller writes a record that says nothing each half second.
    "metadata.max.idle.interval.ms": "5000",
}

_LOGGER: Final = "-Dorg.slf4j.simpleLogger"
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    # Without this, each thread keeps an off-heap buffer as large as the largest record it has ever written.
    "-Djdk.nio.maxCachedBufferSize=1048576",
    f"{_LOGGER}.showDateTime=true",
    f"{_LOGGER}.dateTimeFormat=HH:mm:ss.SSS",
    # This class logs hundreds of lines of settings at each start.
    f"{_LOGGER}.log.org.apache.kafka.common.config.AbstractConfig=warn",
)


class LocalBroker(LocalServer):
    """A Kafka broker with its data, configuration and log in ``folder``; not started yet.

    ``settings`` override the defaults when its data is created; in their values, ``{port}`` and ``{controller_port}``
    are replaced. ``port`` is that for clients, by default any free one; raises ``ConfigError`` if the data was created
    for another. The environment variable ``KAFKA_OPTS`` has further options for its JVM, as for Kafka's own scripts.
    ``jars`` may be those of an older Kafka; before 3.9 that needs the setting ``controller.quorum.voters``.
    ``jvm_options`` apply to the broker, but not to the program that formats its data.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        heap_mb: int = 512,
        settings: Mapping[str, str] | None = None,
        jars: JarSet = BROKER_JARS,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self._folder = folder.absolute()
        super().__init__(self._folder / "broker.log")
        self._jars = jars
        self._heap_mb = heap_mb
        self._jvm_options = jvm_options
        self._settings = {**_SETTINGS, **(settings or {})}
        self._config = self._folder / "server.properties"
        self._ports = self._configured_ports() or (port or free_port(), free_port())
        if port is not None and port != self._ports[0]:
            raise ConfigError(
                f"{self._config} is for port {self._ports[0]}, not {port}; move {folder} away, or use that"
            )

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect, such as ``127.0.0.1:41207``; the same after restarts."""
        return f"{HOST}:{self._ports[0]}"

    def start(self) -> None:
        """Start it and wait until it is up; does nothing if it is running.

        Raises:
            BrokerError: it exited or was not up in time; the message has the last lines of its log. ConfigError: there
                is no Java or no jar, or the folder cannot be written.
        """
        if self._process is not None:
            return
        java = java_command(self._jars.paths(), self._heap_mb)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._config.exists():
                self._format(java)
            begin = self.log.stat().st_size if self.log.exists() else 0
            process = self._run([*java, *self._jvm_options, "kafka.Kafka", str(self._config)], signal.SIGKILL)
        except OSError as error:
            raise ConfigError(f"the local broker cannot run in {self._folder}: {error}") from error
        with ExitStack() as undo:
            undo.callback(self.kill)
            self._await_start(process, begin)
            undo.pop_all()

    def stop(self, timeout_s: float = _STOP_TIMEOUT_SECONDS) -> bool:
        """Stop it with SIGTERM, and wait until it has exited; does nothing if it is not running.

        Returns false if it had to be killed because it did not exit in time.
        """
        return self._end(signal.SIGTERM, timeout_s)

    def _format(self, java: list[str]) -> None:
        data = self._folder / "data"
        port, controller_port = self._ports
        # Written under another name until the data is ready, so that an interrupted start begins again.
        draft = self._folder / "server.properties.new"
        own = {"host": HOST, "port": port, "controller_port": controller_port, "data": data}
        draft.write_text("".join(f"{name}={value.format(**own)}\n" for name, value in self._settings.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22].replace("-", "A")
        tool = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
        if "controller.quorum.voters" not in self._settings:
            tool.append("--standalone")
        done = subprocess.run(  # noqa: S603  our own command
            [*tool, "-t", cluster_id, "-c", str(draft)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_START_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerError(f"the local broker's data cannot be formatted in {data}: {last_lines(done.stdout)}")
        draft.replace(self._config)

    def _await_start(self, process: "subprocess.Popen[bytes]", begin: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            ended = process.poll() is not None
            if _STARTED.encode() in self.log.read_bytes()[begin:]:
                return
            if ended or time.monotonic() > deadline:
                fact = f"exited with {process.returncode}" if ended else f"is not up after {_START_TIMEOUT_SECONDS} s"
                raise BrokerError(f"the local broker {fact}; the last lines of {self.log}: {self._last_lines(begin)}")
            time.sleep(0.05)

    def _configured_ports(self) -> tuple[int, int] | None:
        if not self._config.exists():
            return None
        found = re.search(r"^listeners=CLIENTS://.*?:(\d+),CONTROLLER://.*?:(\d+)\b", self._config.read_text(), re.M)
        if found is None:
            raise ConfigError(
                f"{self._config} is not a local broker's configuration; remove its folder, or choose another"
            )
        return int(found[1]), int(found[2])


def java_command(jars: Sequence[Path], heap_mb: int) -> list[str]:
    """Return the command that starts a program of Kafka, without the program's name; uses the class archive if there is
    one. Raises ``ConfigError`` if there is no Java.
    """
    java = check_java()
    options = [f"-Xmx{heap_mb}m", *_JVM_OPTIONS, *shlex.split(os.environ.get("KAFKA_OPTS", ""))]
    options += shlex.split(use_archive(broker_archive(jars, java)))
    # An archive is valid only for the same jars in the same order.
    return [str(java.launcher), *options, "-cp", os.pathsep.join(map(str, jars))]
