"""The whole loop on this machine: server, broker, and capture, tracker and writers as processes that can be killed."""

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from flushtracker.delta.log.reader import read_shape
from flushtracker.errors import ConfigError, SinkError
from flushtracker.local.broker import LocalBroker
from flushtracker.local.postgres import LocalPostgres
from flushtracker.process.guarded_process import GuardedProcess
from tests.support.brokers import Broker
from tests.support.capture_rig import CaptureRig
from tests.support.installed_release import CHECKOUT, Release
from tests.support.loop_workload import FOLDED, SHAPES, TABLES, LoopShape
from tests.support.new_server import new_server
from tests.support.s3_server import S3Server
from tests.support.server_truth import ServerTruth
from tests.support.spark_cluster import FAST_START
from tests.support.waiting import wait_until

Part = Literal["capture", "tracker", "writers", "broker", "server"]

_COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    # For the trace of what it confirms.
    "capture": ("capture", "--verbose", "--log-format", "json"),
    "tracker": ("track",),
    "writers": ("write",),
}
_DEADLINE_S: Final = 300
# Each keepalive is a batch of the tracker, and each look at the ack table takes from the jobs what they need.
INTERVALS: Final = {"status": "200 ms", "acks": "200 ms", "keepalive": "2 seconds", "shapes": "500 ms"}
# Each shuffle partition more makes a micro-batch slower, and a JVM that is killed soon need not optimize.
_STATE: Final = {"shape_groups": 2, "shuffle_partitions": 1}


class WholeLoop:
    """A context manager in which everything runs; ``folder`` has all data, and ``<part>.log`` of each process.

    ``flush`` and ``write_unit`` are those of the writers' job. With a ``store``, which the environment must name,
    tables and checkpoints are there; ``files`` has them in either case. Without a ``server``, it is a new one. A
    program is of this checkout, or of what ``releases`` has for it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        flush: str,
        write_unit: str,
        store: S3Server | None = None,
        server: LocalPostgres | None = None,
        shapes: Sequence[LoopShape] = SHAPES,
    ) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.files = folder if store is None else store.folder
        self.place = str(folder) if store is None else "s3://bucket"
        """What the programs call ``files``."""
        self.server = server or new_server(folder / "server")
        self.broker = LocalBroker(folder / "broker")
        self.shared_broker: Broker | None = None
        """One that runs already, in place of :attr:`broker`."""
        self.log = self.files / "log"
        self.shapes = shapes
        self.commands = dict(_COMMANDS)
        """The arguments of each program that runs, without its configuration."""
        self.releases: dict[str, Release] = {}
        self.writing: dict[str, Any] = {"flush": flush, "write_unit": write_unit}
        """Settings of the writers' job."""
        self.tracking: dict[str, Any] = {}
        """Settings of the tracking job."""
        self._processes: dict[str, GuardedProcess] = {}
        self._open = ExitStack()

    def __enter__(self) -> "WholeLoop":
        with ExitStack() as stack:
            stack.enter_context(self._servers())
            servers = (self.shared_broker or stack.enter_context(self.broker)).bootstrap_servers
            self.rig = CaptureRig(self.server, servers, self.folder / "rig", lambda role: f"{role}-{uuid.uuid4()}")
            self.rig.acks = self.files / "acks"
            self.rig.settings["acks"] = f"{self.place}/acks"
            stack.callback(self.rig.close)
            stack.callback(self._kill_processes)
            self.truth = ServerTruth(self.server, self.shapes)
            self._start()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def kill(self, part: Part) -> None:
        """SIGKILL, to all its processes, and start it again at once."""
        if part in self.commands:
            self.end(part)
            self.start(part)
        else:
            service = self.broker if part == "broker" else self.server
            service.kill()
            service.start()

    def end(self, name: str) -> None:
        """SIGKILL, to all processes of capture, the tracker or the writers."""
        self._processes.pop(name).kill()

    def stop(self, name: str) -> None:
        """SIGTERM, and wait until it has ended."""
        self._processes.pop(name).stop()

    def start(self, name: str) -> None:
        """Start capture, the tracker or the writers."""
        release = self.releases.get(name, CHECKOUT)
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        # Killed drivers leave their temporary files behind.
        places = {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch)}
        java_options = f"{FAST_START} -Djava.io.tmpdir={scratch}"
        self._processes[name] = GuardedProcess(
            name,
            release.command("-m", "flushtracker", *self.commands[name], "--config", str(self._config(name))),
            log=self.folder / f"{name}.log",
            env={**release.environ(), **places, "JAVA_TOOL_OPTIONS": java_options},
        )

    def raise_failure(self) -> None:
        """Raise the error of a process that has ended by itself."""
        for process in self._processes.values():
            if failure := process.failure():
                raise failure

    def _servers(self) -> AbstractContextManager[object]:
        """What starts :attr:`server`, and ends all servers."""
        return self.server

    def _start(self) -> None:
        """Every shape has all rows of its table, because nothing is written before capture has registered it.

        One with a subquery needs a snapshot all the same, which the writers' job takes.
        """
        postgres = self.rig.settings["postgres"]
        self.rig.settings["max_batch_size"] = 20
        self.rig.settings["intervals"] = dict(INTERVALS)
        self._create()
        self.rig.define(*(shape.definition for shape in self.shapes))
        self.writing["snapshot"] = "auto"
        self.writing["postgres"] = {name: postgres[name] for name in ("connection", "publication")}
        self._write_configurations()
        for name in self.commands:
            self.start(name)

        def are_registered() -> bool:
            self.raise_failure()
            return {*self.rig.registry()} == {shape.id for shape in self.shapes}

        wait_until(are_registered, "the shapes are registered", _DEADLINE_S)
        for shape in self.shapes:
            if shape.inner:
                self.await_snapshot(shape.id)

    def await_snapshot(self, shape_id: str) -> None:
        """Wait until the shape can be read."""

        def has_snapshot() -> bool:
            self.raise_failure()
            try:
                read_shape(str(self.log), shape_id)
            except (ConfigError, SinkError):
                return False
            return True

        wait_until(has_snapshot, f"the snapshot of {shape_id}", _DEADLINE_S)

    def _create(self) -> None:
        """Create the topics, and on the server everything but the shapes' rows."""
        self.rig.create()
        self.server.execute(*TABLES)
        self.truth.create()

    def _write_configurations(self) -> None:
        config, topics = self.rig.config, self.rig.config.kafka.topics
        source = {
            "format": "kafka",
            "bootstrap_servers": config.kafka.bootstrap_servers,
            "retry_timeout": "5 minutes",
        }
        tracker = {
            "source": {**source, "fragments": topics.fragments, "flushes": topics.flushes},
            "state": {"checkpoint": f"{self.place}/checkpoint", **_STATE},
            "sink": {"acks": config.acks, "dead_letters": f"{self.place}/dead_letters"},
            "trigger": "200 ms",
            **self.tracking,
        }
        writers = {
            "source": {**source, "shape_changes": topics.shape_changes, "shapes": topics.shapes},
            "flushes": {"topic": topics.flushes},
            "state": {"checkpoint": f"{self.place}/write_checkpoint", **_STATE},
            "sink": {
                "log": f"{self.place}/log",
                "shapes": f"{self.place}/log_shapes",
                "retain": {"shapes": dict.fromkeys(FOLDED, "2 seconds")},
            },
            "trigger": "200 ms",
            **self.writing,
        }
        for name, settings in (("tracker", tracker), ("writers", writers)):
            self._config(name).write_text(yaml.safe_dump(settings))

    def _config(self, name: str) -> Path:
        return self.rig.config_file if name == "capture" else self.folder / f"{name}.yaml"

    def _kill_processes(self) -> None:
        for process in self._processes.values():
            process.kill()
