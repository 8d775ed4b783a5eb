"""``Loop``: the whole loop on this machine, of whose programs and servers each can be killed, replaced and moved."""

import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import ConfigError, FlushtrackerError, ShapeEndedError, SinkError, SnapshotMissingError
from flushtracker.events.registry_events import SourceEntry, parse_registry_entry
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import connect
from flushtracker.postgres.shape_rows import shape_rows
from flushtracker.process.guarded_process import GuardedProcess
from flushtracker.shape_log.table.reader import read_shape
from flushtracker.shapes.shapes_file import load_shapes
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig
from tests.support.config_file import merged, write_config
from tests.support.failover_pair import FailoverPair
from tests.support.installed_release import CHECKOUT, Release
from tests.support.log_follower import Follower, row_texts
from tests.support.loop_settings import Program, settings_of
from tests.support.loop_workload import INTERVALS, MIXED, Content, LoopWorkload
from tests.support.new_server import new_server
from tests.support.s3_server import S3Server
from tests.support.server_truth import ServerTruth
from tests.support.spark_cluster import FAST_START
from tests.support.waiting import wait_until

Part = Literal[Program, "broker", "server"]

DEADLINE_S: Final = 300
_PROGRAMS: Final[tuple[Program, ...]] = ("capture", "tracker", "writers")
_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    # For the trace of what it confirms.
    "capture": ("capture", "--verbose", "--log-format", "json"),
    "tracker": ("track",),
    "writers": ("write",),
    "snapshots": ("snapshot",),
    "serve": ("serve",),
}


@dataclass(eq=False)
class Loop:
    """A context manager in which everything runs; ``folder`` has all data, and ``<program>.log`` of each process."""

    folder: Path
    content: Content = MIXED
    _: KW_ONLY
    servers: LocalPostgres | FailoverPair | None = None
    """A new server, if none is given; of a pair, capture connects to whichever is the primary."""
    running_broker: Broker | None = None
    """One that others use, too, and that must not be killed."""
    store: S3Server | None = None
    """Has tables and checkpoints, if there is one; the environment must name it."""
    programs: Sequence[Program] = _PROGRAMS
    """Without ``snapshots``, the writers' job takes the snapshots."""
    release: Release = CHECKOUT
    """The release of all programs, at first."""
    seed: int | None = None
    """The seed of transactions that run from before the programs start, if any."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further ones, of all programs."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o755)
        self.files = self.folder if self.store is None else self.store.folder
        """Where tables and checkpoints are, and ``place`` is what the programs call it."""
        self.place = str(self.folder) if self.store is None else "s3://bucket"
        self.log, self.registry_table = self.files / "log", self.files / "log_shapes"
        self.pair = self.servers if isinstance(self.servers, FailoverPair) else None
        self._servers = self.servers or new_server(self.folder / "server")
        self.server = self._servers.primary if isinstance(self._servers, FailoverPair) else self._servers
        self.truth = ServerTruth(self.server, self.content.shapes)
        self.releases = dict[str, Release].fromkeys(_COMMANDS, self.release)
        self.load = None if self.seed is None else self.workload(self.seed)
        self.defined = [shape.definition for shape in self.content.shapes]
        self._file = self.folder / "flushtracker.yaml"
        self._processes: dict[str, GuardedProcess] = {}
        self._open = ExitStack()

    def __enter__(self) -> "Loop":
        with ExitStack() as stack:
            stack.enter_context(self._servers)
            self.broker = self.running_broker or stack.enter_context(LocalBroker(self.folder / "broker"))
            self.rig = CaptureRig(
                *(self.server, self.broker.bootstrap_servers, self.folder / "rig"),
                lambda role: f"{role}-{uuid.uuid4()}",
            )
            stack.callback(self.rig.close)
            stack.callback(self._kill_programs)
            self._create()
            if self.load is not None:
                stack.enter_context(self.load)
            for program in self.programs:
                self.start(program)
            self.wait(self._is_defined, "the shapes are registered")
            for shape in self.content.shapes:
                if shape.inner:
                    self.await_snapshot(shape.id)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    # What may happen.

    def kill(self, part: Part) -> None:
        """SIGKILL, to all its processes, and start it again at once."""
        if part in _COMMANDS:
            self.end(part)
            self.start(part)
        else:
            service = self.broker if part == "broker" else self.server
            assert isinstance(service, LocalBroker | LocalPostgres)
            assert service is not self.running_broker
            service.kill()
            service.start()

    def end(self, program: str) -> None:
        """SIGKILL, to all its processes."""
        self._processes.pop(program).kill()

    def stop(self, program: str) -> None:
        """SIGTERM, and wait until it has ended."""
        self._processes.pop(program).stop()

    def start(self, program: str) -> None:
        """Start a program; one that reads the tables of the writers' job, when they are there."""
        if program in {"snapshots", "serve"}:
            self.wait(lambda: RegistryTable.exists(str(self.registry_table)), "the tables of the writers' job")
        release = self.releases[program]
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        # Killed drivers leave their temporary files behind.
        places = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        java_options = f"{FAST_START} -Djava.io.tmpdir={scratch}"
        self._processes[program] = GuardedProcess(
            program,
            release.command("-m", "flushtracker", *_COMMANDS[program], "--config", str(self._config(program))),
            log=self.folder / f"{program}.log",
            env={**release.environ(), **places, "JAVA_TOOL_OPTIONS": java_options},
        )

    def replace(self, program: str, release: Release) -> None:
        """Stop the program, and start that of the release, if it has it."""
        if self.has(program):
            self.stop(program)
        self.releases[program] = release
        if program != "serve" or release.has("serve"):
            self.start(program)

    def end_capture(self) -> None:
        """SIGKILL, and wait until the server has missed it."""
        self.end("capture")
        active = "SELECT 1 FROM pg_replication_slots WHERE active"
        wait_until(lambda: not self.server.execute(active), "the slot is free", DEADLINE_S)

    def begin_epoch(self, *arguments: str) -> None:
        """Start capture once so that it begins a new epoch, until it has registered the shapes, and then as before."""
        epochs = self.sources()
        if self.has("capture"):
            self.end("capture")
        process = self.rig.start_process("flushtracker", "capture", *arguments)
        wait_until(lambda: process.poll() is not None or self.sources() > epochs, "the new source", DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, self.rig.log()[-2000:]
        self.start("capture")

    def fail_over(self) -> None:
        """Kill the primary of the pair, and promote the standby in its place."""
        assert self.pair is not None
        self.pair.fail_over()
        self.server = self.rig.server = self.truth.server = self.pair.primary

    def use(self, server: LocalPostgres) -> None:
        """Let all programs connect to another server, once they are started again."""
        self.server = self.rig.server = server
        self.rig.settings["postgres"] = dict(server.options)
        self._write_configurations()

    def define(self, *definitions: dict[str, Any]) -> None:
        """Define further shapes."""
        self.defined += definitions
        self.rig.define(*self.defined)

    def workload(self, seed: int, **options: Any) -> LoopWorkload:
        """Random transactions on whichever server is the primary."""
        return LoopWorkload(lambda: self.server, seed, self.content, **options)

    # What can be seen of it.

    def has(self, program: str) -> bool:
        """Whether the program runs."""
        return program in self._processes

    def raise_failure(self) -> None:
        """Raise the error of a process that has ended by itself.

        With a pair, capture ends if there is no primary when it starts; a supervisor starts it again, and so does this.
        """
        capture = self._processes.get("capture")
        failure = None if capture is None or self.pair is None else capture.failure()
        if failure is not None and "cannot be reached" in str(failure):
            self.kill("capture")
        for process in self._processes.values():
            if failure := process.failure():
                raise failure

    def take_failures(self) -> dict[str, FlushtrackerError]:
        """Forget the programs that have ended by themselves, and return why they have, by name."""
        found = {name: failure for name, process in self._processes.items() if (failure := process.failure())}
        for name in found:
            self.stop(name)
        return found

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait until ``condition`` holds; raises the error of a process that has ended by itself."""

        def holds() -> bool:
            self.raise_failure()
            return bool(condition())

        wait_until(holds, what, DEADLINE_S)

    def await_snapshot(self, shape_id: str) -> None:
        """Wait until the shape can be read."""

        def has_snapshot() -> bool:
            try:
                read_shape(str(self.log), shape_id)
            except (ConfigError, SinkError):
                return False
            return True

        self.wait(has_snapshot, f"the snapshot of {shape_id}")

    def sources(self) -> set[str]:
        """Those that have begun, which is once their shapes are registered: a kill before leaves the one before."""
        entries = [parse_registry_entry(value) for value in self.rig.values("shapes")]
        return {entry.source for entry in entries if isinstance(entry, SourceEntry)}

    def expected(self, shape_id: str) -> list[str]:
        """The rows of the shape's query, as the server answers it now."""
        (definition,) = (each for each in load_shapes(self.rig.shapes_file) if each.id == shape_id)
        with closing(connect(self.server.options)) as connection:
            return row_texts(shape_rows(connection, definition))

    def is_current(self, shape_id: str) -> bool:
        """Whether the shape's rows are those of its query."""
        expected = self.expected(shape_id)
        try:
            rows = read_shape(str(self.log), shape_id, shapes=str(self.registry_table)).rows
        except FlushtrackerError:
            return False
        return row_texts(rows.to_pylist()) == expected

    def has_followed(self, follower: Follower) -> bool:
        """Poll, as long as the shape has ended or waits for its snapshot; whether it has the query's rows."""
        try:
            follower.poll()
        except (ShapeEndedError, SnapshotMissingError):
            return False
        return row_texts(filter(None, follower.table.values())) == self.expected(follower.shape_id)

    def _is_defined(self) -> bool:
        return {*self.rig.registry()} == {shape["id"] for shape in self.defined}

    def _create(self) -> None:
        """Create the topics, and on the server everything but what the transactions do."""
        self.rig.acks = self.files / "acks"
        settings = self.rig.settings
        settings |= merged(
            settings, {"storage": self.place, "capture": {"intervals": INTERVALS, **self.content.capture}}
        )
        settings |= merged(settings, self.settings)
        if self.pair is None:
            self.rig.create()
            self.server.execute(*self.content.tables)
        else:
            settings["capture"]["max_batch_size"] = 1000
            settings["postgres"] = self.pair.options
            # The wait for a capture that was killed with its primary.
            settings["kafka"]["retry_timeout"] = "10 seconds"
            self.rig.create_topics()
            self.server.execute("CREATE PUBLICATION shapes FOR ALL TABLES", *self.content.tables)
            self.pair.create_slot()
        if self.content.is_judged:
            self.truth.create(failover=self.pair is not None)
        self.rig.define(*self.defined)
        self._write_configurations()

    def _write_configurations(self) -> None:
        """That of all programs but capture, whose rig writes it at its start."""
        settings = settings_of(self.rig, self.place, self.content, takes_snapshots="snapshots" not in self.programs)
        write_config(self._file, merged(settings, self.settings))

    def _config(self, program: str) -> Path:
        return self.rig.config_file if program == "capture" else self._file

    def _kill_programs(self) -> None:
        for process in self._processes.values():
            process.kill()
