"""``flushtracker up``: runs all programs of the configuration on this machine until SIGTERM or Ctrl-C.

The order of the start: local services, if asked for; capture, which creates topics, publication and slot; then the
jobs; then the server, once there are tables. At the end the writers stop first, and capture after them, so that what
was written is still confirmed.
"""

import argparse
import fcntl
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from flushtracker.config.config_keys import PROGRAMS
from flushtracker.config.one_file import (
    AVAILABLE_NOW,
    DEFAULT_CONFIG,
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
from flushtracker.operate.up.local_services import LocalServices
from flushtracker.operate.up.program_log import ProgramLog
from flushtracker.operate.up.readiness import Readiness
from flushtracker.process.program import StopFlag, print_status, set_on_signals
from flushtracker.process.supervisor import Supervisor
from flushtracker.shapes.shapes_file import read_shapes_file
from flushtracker.status.http.listener import open_listener
from flushtracker.wal.lsn import format_lsn

_PERIOD_S: Final = 1.0
_STOP_ORDER: Final = ("serve", "jobs", "write", "snapshot", "track", "capture")
_NAME: Final = "flushtracker up"
_LOCAL: Final = "local"
"""The folder beside the configuration with the data of local services."""


def run(arguments: argparse.Namespace) -> int:
    """Run everything; the exit code is 0 after a stop, else that of the program that ended all."""
    stop = StopFlag()
    set_on_signals(stop)
    config: Path = arguments.config

    def say(line: str) -> None:
        print_status(_NAME, line, arguments.log_format)

    file = read_config(config)
    _choose_ports(file)
    with _only_one(config):
        services = LocalServices(
            file,
            config.absolute().parent / _LOCAL,
            say,
            kafka=arguments.with_kafka,
            postgres=arguments.with_postgres,
        )
        _check(file, config, services.addresses)
        if "track" in file.programs or "write" in file.programs:
            # Before both jobs would fetch them.
            SPARK_JARS.fetch()
        log = ProgramLog(arguments.log_format)
        commands = {process: _command(process, arguments) for process in _processes(file)}
        with closing(Supervisor(commands, log.show, say)) as children:
            _Pipeline(file, config, children, services, say).run(stop)
    return 0


class _Pipeline:
    """All programs of the file, from the start of the first to the end of the last."""

    def __init__(
        self,
        file: OneFile,
        config: Path,
        children: Supervisor,
        services: LocalServices,
        say: Callable[[str], None],
    ) -> None:
        self._file = file
        self._config = config
        self._children = children
        self._services = services
        self._say = say
        self._is_explained = False
        self._readiness = Readiness({program: file.status_url(program) for program in file.programs})

    def run(self, stop: StopFlag) -> None:
        """Until ``stop`` is set; raises the failure of a program that must not be started again."""
        try:
            self._services.start()
            self._say(f"starting {', '.join(self._file.programs)}; it takes about a minute until everything runs")
            while not stop.is_set():
                self._step()
                stop.wait(_PERIOD_S)
        except FlushtrackerError as error:
            self._say(f"{error}; stopping all")
            raise
        finally:
            self._stop()

    def _step(self) -> None:
        self._services.check()
        self._children.check()
        for process, programs in _processes(self._file).items():
            if not self._children.is_started(process) and all(map(self._readiness.may_start, programs)):
                self._say(f"starting {process}{f' ({listed(programs)})' if len(programs) > 1 else ''}")
                self._children.start(process)
        if self._is_explained:
            return
        self._readiness.look()
        for line in self._readiness.news():
            self._say(line)
        if not self._children.has_run and self._readiness.is_complete:
            self._children.has_run = True
            for line in _commands(self._file, self._config):
                self._say(line)
        if self._children.has_run and self._readiness.has_rows:
            self._is_explained = True
            if "serve" in self._file.programs:
                self._say(f"every shape has its rows: {_shape_url(self._file, self._config)}")

    def _stop(self) -> None:
        for program in _STOP_ORDER:
            if program == "capture":
                self._readiness.look()
            self._children.stop(program)
        self._services.stop()
        slot, lsn = self._file.section("capture").text("slot").value, self._readiness.confirmed_lsn
        confirmed = "nothing was confirmed" if lsn is None else f"slot {slot} was confirmed up to {format_lsn(lsn)}"
        self._say(f"everything has stopped; {confirmed}")


def _processes(file: OneFile) -> dict[str, tuple[str, ...]]:
    """The processes by command, with the programs of each: both jobs share one if their settings of Spark are one."""
    found: dict[str, tuple[str, ...]] = {program: (program,) for program in file.programs}
    if not set(JOBS) <= found.keys() or any(file.options(f"{job}.spark") for job in JOBS):
        return found
    return {"jobs": JOBS} | {name: programs for name, programs in found.items() if name not in JOBS}


def _commands(file: OneFile, config: Path) -> Iterator[str]:
    yield "everything runs: a first batch was written and acknowledged"
    option = [] if str(config) == DEFAULT_CONFIG else ["--config", str(config)]
    port = os.environ.get(STATUS_PORT_VARIABLE)
    chosen = f"{STATUS_PORT_VARIABLE}={port} " if port else ""
    if "capture" in file.programs:
        yield f"what holds the slot: {chosen}{shlex.join(['flushtracker', 'status', *option])}"
    yield f"all programs on one page: {file.status_url(file.programs[0])}/"


def _shape_url(file: OneFile, config: Path) -> str:
    """Where one of the shapes is served."""
    served = load_serve_config(config).http
    url = f"{StatusConfig(served.listen_host, served.listen_port).own_url}/v1/shape"
    shapes = read_shapes_file(Path(file.root.text("shapes").value)).definitions
    return f"{url}?{urlencode({'shape': shapes[0].id, 'offset': -1})}" if shapes else url


def _command(program: str, arguments: argparse.Namespace) -> list[str]:
    more = ["--create"] if program == "capture" else []
    options = ["--config", str(arguments.config), "--log-format", arguments.log_format]
    verbose = ["--verbose"] if arguments.verbose else []
    return [sys.executable, "-m", "flushtracker", program, *more, *options, *verbose]


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
