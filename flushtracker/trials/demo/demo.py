"""``running_demo``: the pipeline of ``flushtracker up``, with a local PostgreSQL and Kafka, and a workload."""

import fcntl
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import IO, Final

from flushtracker.capture.capture_config import CaptureConfig, load_capture_config
from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.one_file import DEFAULT_CONFIG
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.starting_config import config_text
from flushtracker.errors import ConfigError, FlushtrackerError
from flushtracker.local.free_ports import HOST, free_port, free_ports
from flushtracker.operate.up.pipeline import Pipeline, running_pipeline
from flushtracker.operate.up.program_log import ProgramLog
from flushtracker.postgres.connection import connect, rows
from flushtracker.process.log_format import LogFormat
from flushtracker.process.supervisor import Supervisor
from flushtracker.trials.demo.workload import TABLES

LOG: Final = "log"
"""The shape log's folder in the demo's folder."""
_PROGRAMS_LOG: Final = "programs.log"
CONF: Final = Path(__file__).with_name("conf")
_SHAPES: Final = "shapes.d"
_SETTINGS: Final = "settings.yaml"
_LOCK: Final = "demo.lock"
"""Marks a demo's folder; locked while the demo runs."""
_WORKLOAD: Final = "workload"
_WORKLOAD_MODULE: Final = "flushtracker.trials.demo.workload"
_LATER_SHAPE: Final = "orders-us.yaml"
STATUS_PORT: Final = 9464
HTTP_PORT: Final = 9470
"""The defaults of ``status.listen`` and ``serve.listen``."""
_PORTS_MARK: Final = "\0flushtracker demo: ports"
"""A Unix socket without a file, bound by the one demo that has these ports: others may start before it listens."""


@dataclass(frozen=True, slots=True)
class Content:
    """The statements that make the tables, the folder of the shapes, and a change of the configuration's text."""

    tables: Sequence[str] = TABLES
    shapes: Path = CONF / _SHAPES
    edit: Callable[[str], str] = str


_CONTENT: Final = Content()


class Demo:
    """All parts, with their data, configuration and log in ``folder``."""

    def __init__(self, folder: Path, pipeline: Pipeline, workload: Supervisor) -> None:
        self.pipeline = pipeline
        self.workload = workload
        self.shapes = folder / _SHAPES
        self.log = folder / LOG
        self.config_file = folder / DEFAULT_CONFIG
        """The configuration, from which other commands find everything."""
        self.config = load_capture_config(self.config_file)
        self.status_url = pipeline.file.status_url("track")
        self.shapes_url = f"http://{load_serve_config(self.config_file).http.listen}/v1/shape"

    def step(self) -> None:
        """Start programs that can start, and restart ended ones; raises the failure of one that must stay ended."""
        self.pipeline.step()
        self.workload.check()

    def add_shape(self) -> Path:
        """Add a shape on a table that already has rows and is still written to; returns its file."""
        path = self.shapes / _LATER_SHAPE
        new = path.with_suffix(".new")
        shutil.copy(CONF / _LATER_SHAPE, new)
        new.rename(path)
        return path

    def stop_workload(self) -> None:
        self.workload.stop(_WORKLOAD)


@contextmanager
def running_demo(
    folder: Path,
    say: Callable[[str], None],
    log_format: LogFormat = "text",
    *,
    prefers_default_ports: bool = False,
    content: Content = _CONTENT,
) -> Iterator[Demo]:
    """The demo, whose local services and workload run; each ``step`` starts more. Everything stops after the block.

    ``say`` is called with a line for each part that starts or stops. With ``prefers_default_ports``, the ports are
    those that the documentation names, if they are free.
    """
    folder = folder.absolute()
    options = ("--log-format", log_format)
    with ExitStack() as parts:
        mark = parts.enter_context(socket.socket(socket.AF_UNIX))
        parts.enter_context(demo_folder(folder))
        ports = _default_ports(mark) if prefers_default_ports else _free_ports()
        (folder / DEFAULT_CONFIG).write_text(content.edit(demo_config(folder, *ports)))
        shutil.copytree(content.shapes, folder / _SHAPES)
        say(f"data, configuration and logs are in {folder}")
        say(f"edit the files in {folder / _SHAPES} to add and remove shapes while it runs")
        output = f"the output of all programs is in {folder / _PROGRAMS_LOG}"
        say(output)
        log = ProgramLog(log_format, parts.enter_context((folder / _PROGRAMS_LOG).open("w")))
        running = running_pipeline(folder / DEFAULT_CONFIG, log.show, say, options=options, kafka=True, postgres=True)
        command = [sys.executable, "-m", _WORKLOAD_MODULE, "--config", str(folder / DEFAULT_CONFIG), *options]
        demo = Demo(folder, parts.enter_context(running), Supervisor({_WORKLOAD: command}, log.show, say))
        _create(content.tables, demo.config)
        say(f"starting {_WORKLOAD}")
        parts.callback(demo.stop_workload)
        demo.workload.has_run = True
        demo.workload.start(_WORKLOAD)
        try:
            yield demo
        except FlushtrackerError:
            say(output)
            raise


def demo_config(folder: Path, status_port: int, http_port: int) -> str:
    """Its configuration without variables, so that commands in another terminal can use it."""
    postgres = f"postgresql://postgres@{HOST}:{free_port()}/postgres"
    text = config_text(postgres, f"{HOST}:{free_port()}", str(folder), str(folder / _SHAPES))
    settings = Template((CONF / _SETTINGS).read_text())
    return f"{text}{settings.substitute(status_port=status_port, http_port=http_port)}"


def _create(tables: Sequence[str], config: CaptureConfig) -> None:
    with closing(connect(config.postgres.connection)) as connection:
        for statement in ("RESET search_path", *tables):
            rows(connection, statement)


def _default_ports(mark: socket.socket) -> tuple[int, int]:
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
