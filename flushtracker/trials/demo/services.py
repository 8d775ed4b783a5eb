"""``Demo``: server, broker, capture, the jobs and workload, started in this order and stopped in reverse.

The HTTP server starts once there are tables for it to serve.
"""

import fcntl
import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from string import Template
from typing import IO, Final

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.one_file import read_config
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.topic_rules import ROLES
from flushtracker.jvm.jars import BROKER_JARS, SPARK_JARS
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.local.broker import LocalBroker
from flushtracker.local.free_ports import HOST, free_port, free_ports
from flushtracker.local.postgres import LocalPostgres
from flushtracker.operate.up.readiness import Readiness
from flushtracker.process.guarded_process import GuardedProcess, child_environment
from flushtracker.process.log_format import LogFormat
from flushtracker.trials.demo.workload import TABLES

LOG: Final = "log"
"""The shape log's folder in the demo's folder."""
_CONF: Final = Path(__file__).with_name("conf")
_CONFIG: Final = "flushtracker.yaml"
_SHAPES: Final = "shapes.d"
"""The folder with one file per shape."""
_OWN_SHAPE: Final = "new_shape.yaml"
_WORKLOAD: Final = "workload"
_SERVE: Final = "serve"
_NEW_SHAPE: Final = """\
# Added by the demo while it ran.
id: orders-us
table: public.orders
where: region = 'us'
"""
_LOCK: Final = "demo.lock"
"""Marks a demo's folder; locked while the demo runs."""
STATUS_PORT: Final = 9464
HTTP_PORT: Final = 9470
"""The defaults of ``status.listen`` and ``serve.listen``."""
_PORTS_MARK: Final = "\0flushtracker demo: ports"
"""A Unix socket without a file, bound by the one demo that has these ports: others may start before it listens."""
_CHILDREN: Final = (  # name, module and arguments
    ("capture", ("flushtracker", "capture", "--create")),
    ("jobs", ("flushtracker", "jobs")),
    (_WORKLOAD, ("flushtracker.trials.demo.workload",)),
)


class Demo:
    """All parts, with their data, configuration and logs in ``folder``.

    They run inside the block, which can be entered only once. They stop when the block or this process ends, for any
    reason. ``say`` is called with a line for each part that starts or stops. With ``prefers_default_ports``, the ports
    are those that the documentation names, if they are free. Another program may take them before they are in use.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        log_format: LogFormat = "text",
        *,
        prefers_default_ports: bool = False,
    ) -> None:
        self._folder = folder.absolute()
        self._say = say
        self._started_s = time.monotonic()
        self._readiness: Readiness | None = None
        self._log_format = log_format
        self._children: list[GuardedProcess] = []
        self._parts = ExitStack()
        self._workload = ExitStack()
        self._broker: LocalBroker | None = None
        self._mark = socket.socket(socket.AF_UNIX)
        status_port, http_port = _ports(self._mark) if prefers_default_ports else _free_ports()
        self.status_url = f"http://{HOST}:{status_port}"
        """The tracker's status, metrics and page."""
        self.shapes_url = f"http://{HOST}:{http_port}/v1/shape"
        """The shapes over HTTP."""
        self.config_file = self._folder / _CONFIG
        """The configuration, from which other commands find everything."""
        self.new_shape_file = self._folder / _OWN_SHAPE
        """A shape to add with ``flushtracker add-shape``."""

    def __enter__(self) -> "Demo":
        for jars in (SPARK_JARS, BROKER_JARS):
            # Before anything starts. Only the first demo on a machine has to download them.
            jars.fetch()
        with ExitStack() as parts:
            parts.enter_context(demo_folder(self._folder))
            server = LocalPostgres(self._folder / "server")
            self._broker = broker = LocalBroker(self._folder / "broker")
            self._write_configuration(server, broker)
            self._say(f"data, configuration and logs are in {self._folder}")
            self._say(f"edit the files in {self._folder / _SHAPES} to add and remove shapes while it runs")
            self._say(f"the status page will be on {self.status_url}")
            self._say("it takes about a minute until everything runs, mostly for starting Spark")
            self._start_server(parts, server)
            self._start_broker(parts, broker)
            self._say_when("creating the topics")
            TopicAdmin(self.config.kafka).create(ROLES)
            for name, command in _CHILDREN:
                self._start_child(self._workload if name == _WORKLOAD else parts, name, command)
            parts.push(self._workload)  # Stopped first.
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    @property
    def config(self) -> CaptureConfig:
        """Capture's part (server, slot, topics, ack table); readable once the server and the broker run."""
        return load_capture_config(self.config_file)

    @property
    def log(self) -> Path:
        return self._folder / LOG

    def add_shape(self) -> None:
        """Add a shape on a table that already has rows and is still written to."""
        path = self._folder / _SHAPES / "orders-us.yaml"
        new = path.with_suffix(".new")
        new.write_text(_NEW_SHAPE)
        new.rename(path)
        self._say(f"added the shape orders-us as {path}; a snapshot gives it the rows that orders has")

    def check_startup(self) -> bool:
        """Report what has started since the last call, or is still missing; returns whether everything has started."""
        if self._readiness is None:
            file = read_config(self.config_file)
            self._readiness = Readiness({program: file.status_url(program) for program in file.programs})
        if self._readiness.is_complete:
            return True
        self._readiness.look()
        if self._readiness.may_start(_SERVE) and all(child.name != _SERVE for child in self._children):
            self._start_child(self._parts, _SERVE, ("flushtracker", "serve"))
        for line in self._readiness.news():
            self._say_when(line)
        if self._readiness.is_complete:
            self._say_when("everything runs")
        return self._readiness.is_complete

    def stop_workload(self) -> None:
        self._children = [child for child in self._children if child.name != _WORKLOAD]
        self._workload.close()

    def raise_failure(self) -> None:
        """Raise an error with the exit code of a child that has exited on its own, or that the broker is down.

        The server is not checked: the parts that are connected to it fail when it exits.
        """
        for child in self._children:
            failure = child.failure()
            if failure is not None:
                raise failure
        if self._broker is not None and self._broker.has_exited:
            raise BrokerError(
                f"Kafka on {self._broker.bootstrap_servers} has exited; its log is {self._folder}/broker/broker.log"
            )

    def _write_configuration(self, server: LocalPostgres, broker: LocalBroker) -> None:
        """Write the configuration without variables, so that commands in another terminal can use them."""
        variables = {
            "FLUSHTRACKER_DEMO": str(self._folder),
            "FLUSHTRACKER_DEMO_POSTGRES_PORT": str(server.port),
            "FLUSHTRACKER_DEMO_KAFKA": broker.bootstrap_servers,
            "FLUSHTRACKER_DEMO_STATUS_PORT": self.status_url.rpartition(":")[2],
            "FLUSHTRACKER_DEMO_HTTP_PORT": self.shapes_url.removesuffix("/v1/shape").rpartition(":")[2],
        }
        shutil.copytree(_CONF / _SHAPES, self._folder / _SHAPES)
        for name in (_CONFIG, _OWN_SHAPE):
            (self._folder / name).write_text(filled((_CONF / name).read_text(), variables))

    def _start_server(self, parts: ExitStack, server: LocalPostgres) -> None:
        self._say_when(f"starting PostgreSQL on 127.0.0.1:{server.port}")
        # Registered before the server starts, so that an interrupted start leaves nothing behind.
        parts.callback(self._stop, "PostgreSQL", server.stop)
        server.start()
        server.execute(*TABLES)

    def _start_broker(self, parts: ExitStack, broker: LocalBroker) -> None:
        self._say_when(f"starting Kafka on {broker.bootstrap_servers}")
        parts.callback(self._stop, "Kafka", broker.stop)
        broker.start()

    def _start_child(self, parts: ExitStack, name: str, command: Iterable[str]) -> None:
        log = self._folder / f"{name}.log"
        options = ["--config", str(self.config_file), "--log-format", self._log_format]
        self._say_when(f"starting {name}, log {log.name}")
        child = GuardedProcess(name, [sys.executable, "-m", *command, *options], log=log, env=child_environment())
        parts.callback(self._stop, name, child.stop)
        self._children.append(child)

    def _say_when(self, line: str) -> None:
        """Print the line with the seconds since the start."""
        self._say(f"[{time.monotonic() - self._started_s:.0f} s] {line}")

    def _stop(self, name: str, stop: Callable[[], object]) -> None:
        self._say(f"stopping {name}")
        stop()


def _ports(mark: socket.socket) -> tuple[int, int]:
    """The first port for status, and that of HTTP: the defaults, if free and if no other demo has bound ``mark``."""
    try:
        mark.bind(_PORTS_MARK)
        for port in (*range(STATUS_PORT, STATUS_PORT + len(PROGRAMS)), HTTP_PORT):
            socket.create_server((HOST, port)).close()
    except OSError:
        return _free_ports()
    return STATUS_PORT, HTTP_PORT


def _free_ports() -> tuple[int, int]:
    return free_ports(len(PROGRAMS)), free_port()


def filled(text: str, variables: Mapping[str, str]) -> str:
    """Fill in the variables of a configuration, where they must be in double quotes.

    >>> filled('acks: "${DEMO}/acks"', {"DEMO": 'a "b"'})
    'acks: "a \\\\"b\\\\"/acks"'
    """
    # The text of a JSON string between its quotes has the same meaning in YAML.
    return Template(text).substitute({name: json.dumps(value)[1:-1] for name, value in variables.items()})


@contextmanager
def demo_folder(folder: Path) -> Iterator[None]:
    """Create or empty ``folder``, and lock it against other demos inside the block.

    Raises:
        ConfigError: another demo uses it, it has files of something else, or it cannot be written.
    """
    try:
        lock = _lock_and_empty(folder)
    except OSError as error:
        raise ConfigError(
            f"the demo cannot use {folder}: {error.strerror or error}; name another folder with --data"
        ) from error
    with lock:
        yield


def _lock_and_empty(folder: Path) -> IO[str]:
    mark = folder / _LOCK
    if folder.exists() and not mark.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} has files that are not from a demo; name another folder with --data")
    folder.mkdir(parents=True, exist_ok=True)
    lock = mark.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ConfigError(f"another demo is running in {folder}; stop it, or name another folder with --data") from None
    for path in list(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()
    return lock
