"""``Pipeline``: all programs of a configuration on this machine, started in order, supervised, and stopped in order.

The order of the start: local services, if asked for; capture, which creates topics, publication and slot; then the
jobs; then the server, once there are tables. At the end the writers stop first, and capture after them, so that what
was written is still confirmed.
"""

import fcntl
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.one_file import (
    AVAILABLE_NOW,
    JOBS,
    STATUS_PORT_VARIABLE,
    OneFile,
    read_config,
)
from flushtracker.config.serve_config import load_serve_config
from flushtracker.config.status_config import StatusConfig
from flushtracker.errors import ConfigError, FlushtrackerError, listed
from flushtracker.jvm.jars import SPARK_JARS
from flushtracker.local.free_ports import free_ports
from flushtracker.operate.status.overview_text import config_arguments
from flushtracker.operate.up.local_services import LocalServices
from flushtracker.operate.up.readiness import Readiness
from flushtracker.process.supervisor import Supervisor
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.status.http.listener import open_listener
from flushtracker.wal.lsn import format_lsn

STEP_S: Final = 1.0
"""The time between two steps."""
_STOP_ORDER: Final = ("serve", "sink", "jobs", "write", "snapshot", "track", "capture")
_OPTIONS: Final = {"capture": ("--create",)}
_LOCAL: Final = "local"
"""The folder beside the configuration with the data of local services."""


class Pipeline:
    """All programs of the file, from the start of the first to the end of the last."""

    def __init__(
        self, file: OneFile, config: Path, children: Supervisor, services: LocalServices, say: Callable[[str], None]
    ) -> None:
        self.file = file
        self._config = config
        self._processes = _processes(file)
        self.children = children
        self._services = services
        self._say = say
        self._readiness = Readiness({program: file.status_url(program) for program in file.programs})
        self.has_rows = False
        """Whether everything runs, and every shape has the rows that its table had before."""

    def step(self) -> None:
        """Start programs that can start, and restart ended ones; raises the failure of one that must stay ended.

        Says what has happened since the last step.
        """
        self._services.check()
        self.children.check()
        for process, programs in self._processes.items():
            if not self.children.is_started(process) and all(map(self._readiness.may_start, programs)):
                self._say(f"starting {process}{f' ({listed(programs)})' if len(programs) > 1 else ''}")
                self.children.start(process)
        if self.has_rows:
            return
        self._readiness.look()
        for line in self._readiness.news():
            self._say(line)
        if not self.children.has_run and self._readiness.is_complete:
            self.children.has_run = True
            for line in _commands(self.file, self._config):
                self._say(line)
        if self.children.has_run and self._readiness.has_rows:
            self.has_rows = True
            if "serve" in self.file.programs:
                self._say(f"every shape has its rows: {_shape_url(self.file, self._config)}")

    def stop(self) -> None:
        for program in _STOP_ORDER:
            if program == "capture":
                self._readiness.look()
            self.children.stop(program)
        self._services.stop()
        slot, lsn = self.file.section("capture").text("slot").value, self._readiness.confirmed_lsn
        confirmed = "nothing was confirmed" if lsn is None else f"slot {slot} was confirmed up to {format_lsn(lsn)}"
        self._say(f"everything has stopped; {confirmed}")


@contextmanager
def running_pipeline(
    config: Path,
    show: Callable[[str, str], None],
    say: Callable[[str], None],
    *,
    options: Sequence[str] = (),
    kafka: bool = False,
    postgres: bool = False,
) -> Iterator[Pipeline]:
    """A pipeline whose local services run; each ``step`` starts more of its programs. Everything stops after the block.

    ``show`` gets each line of a program's output, ``say`` what happens to the programs. ``options`` are those of every
    program. Raises ``FlushtrackerError``, before anything starts if the file or an address cannot be used.
    """
    file = read_config(config)
    _choose_ports(file)
    with _only_one(config):
        services = LocalServices(file, config.absolute().parent / _LOCAL, say, kafka=kafka, postgres=postgres)
        _check(file, config, services.addresses)
        if "track" in file.programs or "write" in file.programs:
            # Before both jobs would fetch them.
            SPARK_JARS.fetch()
        command = [sys.executable, "-m", "flushtracker"]
        more = ["--config", str(config), *options]
        commands = {name: [*command, name, *_OPTIONS.get(name, ()), *more] for name in _processes(file)}
        with closing(Supervisor(commands, show, say)) as children:
            pipeline = Pipeline(file, config, children, services, say)
            try:
                services.start()
                say(f"starting {', '.join(file.programs)}; it takes about a minute until everything runs")
                yield pipeline
            except FlushtrackerError as error:
                say(f"{error}; stopping all")
                raise
            finally:
                pipeline.stop()


def _processes(file: OneFile) -> dict[str, tuple[str, ...]]:
    """The processes by command, with the programs of each: both jobs share one if their settings of Spark are one."""
    found: dict[str, tuple[str, ...]] = {program: (program,) for program in file.programs}
    if not set(JOBS) <= found.keys() or any(file.options(f"{job}.spark") for job in JOBS):
        return found
    return {"jobs": JOBS} | {name: programs for name, programs in found.items() if name not in JOBS}


def _commands(file: OneFile, config: Path) -> Iterator[str]:
    yield "everything runs: a first batch was written and acknowledged"
    port = os.environ.get(STATUS_PORT_VARIABLE)
    chosen = f"{STATUS_PORT_VARIABLE}={port} " if port else ""
    if "capture" in file.programs:
        yield f"what holds the slot: {chosen}{shlex.join(['flushtracker', 'status', *config_arguments(config)])}"
    yield f"all programs on one page: {file.status_url(file.programs[0])}/"


def _shape_url(file: OneFile, config: Path) -> str:
    """Where one of the shapes is served."""
    served = load_serve_config(config).http
    url = f"{StatusConfig(served.listen_host, served.listen_port).own_url}/v1/shape"
    shapes = read_shapes_file(Path(file.root.text("shapes").value)).definitions
    return f"{url}?{urlencode({'shape': shapes[0].id, 'offset': -1})}" if shapes else url


def _choose_ports(file: OneFile) -> None:
    """Choose the ports of the programs' status if the file leaves them open, so that they find each other."""
    status = file.status("track")
    if status is not None and status.listen_port == 0:
        os.environ[STATUS_PORT_VARIABLE] = str(free_ports(len(PROGRAMS)))


def _check(file: OneFile, config: Path, more: Mapping[str, StatusConfig]) -> None:
    """Refuse what would end a program only once it has started; raises ``ConfigError``.

    ``more`` has further addresses that must be free, by their keys.
    """
    if "status" in file.off:
        raise file.root.error("status", "is false, but `flushtracker up` asks the programs for their status")
    if not file.programs:
        raise ConfigError(f"{config} has no program to run: all are false")
    for job in JOBS:
        if job in file.programs and file.section(job).text("trigger").value == AVAILABLE_NOW:
            raise ConfigError(f"{config}: {job}.trigger is available_now; `flushtracker up` needs an interval")
    statuses = {f"the status of {program}": file.status(program) for program in file.programs}
    listening = {**more, **{key: status for key, status in statuses.items() if status is not None}}
    if "serve" in file.programs:
        served = load_serve_config(config).http
        if served.listen_port == 0:
            raise ConfigError(f"{config}: serve.listen has port 0; clients of `flushtracker up` need one that stays")
        listening["serve.listen"] = StatusConfig(served.listen_host, served.listen_port)
    for key, status in listening.items():
        open_listener(status, key, backlog=1, stalled_s=1.0).close()


@contextmanager
def _only_one(config: Path) -> Iterator[None]:
    """Lock the file against another one on this machine inside the block; raises ``ConfigError``."""
    with config.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another `flushtracker up` runs with {config}; stop it, or give this one another file"
            ) from None
        yield
