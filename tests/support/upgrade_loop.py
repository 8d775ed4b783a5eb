"""``UpgradeLoop``: the whole loop and the HTTP server, each program of a release of its own, which can be replaced."""

import socket
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import FlushtrackerError
from tests.support.capture_rig import shape
from tests.support.installed_release import Release
from tests.support.loop_workload import SHAPES
from tests.support.waiting import wait_until
from tests.support.whole_loop import WholeLoop

Snapshots = Literal["auto", "manual"]
"""Whether the writers' job takes them, or a program of its own."""

_ORDER: Final = ("serve", "writers", "snapshots", "tracker", "capture")
"""In which docs/upgrading.md replaces the programs."""
_DEADLINE_S: Final = 300


class UpgradeLoop(WholeLoop):
    """Begins with all programs of ``old``. The server, if that does not have it, is there after the upgrade.

    A shape that is defined while it runs has all rows that its table has then, by a snapshot. ``later``: the shapes
    that ``old`` does not know, which are not there before :meth:`define_later`.
    """

    def __init__(self, folder: Path, old: Release, *, flush: str, write_unit: str, snapshots: Snapshots) -> None:
        folder.mkdir(exist_ok=True)
        taken = SHAPES if old.has("shapes/where/subqueries.py") else [each for each in SHAPES if not each.inner]
        super().__init__(folder, flush=flush, write_unit=write_unit, shapes=taken)
        self.old = old
        self.order = tuple(name for name in _ORDER if name != "snapshots" or snapshots == "manual")
        self.releases = dict.fromkeys(self.order, old)
        self.later = [each.definition for each in SHAPES if each not in taken]
        self._defined = [each.definition for each in taken]
        self._listen = f"127.0.0.1:{_own_port()}"

    @property
    def url(self) -> str:
        return f"http://{self._listen}/v1/shape"

    def has(self, name: str) -> bool:
        """Whether the program runs."""
        return name in self._processes

    def define_another(self) -> None:
        self._define(shape(f"another-{len(self._defined)}", "public.users", where="id > 20"))

    def define_later(self) -> None:
        """Define what the older release does not know, and wait until it can be read."""
        self._define(*self.later)
        self.await_snapshots()

    def _define(self, *definitions: dict[str, Any]) -> None:
        self._defined += definitions
        self.rig.define(*self._defined)

    def await_snapshots(self) -> None:
        for each in self._defined[len(self.shapes) :]:
            self.await_snapshot(each["id"])

    def start(self, name: str) -> None:
        """As of ``WholeLoop``; the snapshots' job is started once there are the tables of the writers' job."""
        if name == "snapshots":
            wait_until(self._has_tables, "the tables of the writers' job", _DEADLINE_S)
        super().start(name)

    def _has_tables(self) -> bool:
        self.raise_failure()
        return RegistryTable.exists(str(self.folder / "log_shapes"))

    def replace(self, name: str, release: Release) -> None:
        """Stop the program, and start that of the release, if it has it."""
        if self.has(name):
            self.stop(name)
        self.releases[name] = release
        if name != "serve" or release.has("serve"):
            self.start(name)

    def take_failures(self) -> dict[str, FlushtrackerError]:
        """Forget the programs that have ended by themselves, and return why they have, by name."""
        found = {name: failure for name, process in self._processes.items() if (failure := process.failure())}
        for name in found:
            self.stop(name)
        return found

    def _start(self) -> None:
        super()._start()
        self.commands["serve"] = ("serve",)
        self._write_config("serve", http={"listen": self._listen}, poll="200 ms")
        if self.old.has("serve"):
            self.start("serve")

    def _write_configurations(self) -> None:
        if "snapshots" in self.order:
            self.commands["snapshots"] = ("snapshot",)
            self.writing["snapshot"] = "manual"
            self._write_config("snapshots", postgres=self.writing.pop("postgres"), trigger="200 ms")
        super()._write_configurations()

    def _write_config(self, name: str, **settings: object) -> None:
        """Of a program that reads the tables of the writers' job."""
        sink = {"log": f"{self.place}/log", "shapes": f"{self.place}/log_shapes"}
        self._config(name).write_text(yaml.safe_dump({"sink": sink, **settings}))


def _own_port() -> int:
    """A free port that is given to nobody who asks for any: clients call it while there is no server, for minutes."""
    for port in range(20_000, 30_000):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")
