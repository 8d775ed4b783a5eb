"""``UpgradeLoop``: the whole loop and the HTTP server, each program of a release of its own, which can be replaced."""

from pathlib import Path
from typing import Final

import yaml

from flushtracker.errors import FlushtrackerError
from flushtracker.local.postgres import free_port
from tests.support.capture_rig import shape
from tests.support.installed_release import CHECKOUT, Release
from tests.support.loop_workload import SHAPES
from tests.support.whole_loop import WholeLoop

ORDER: Final = ("serve", "writers", "tracker", "capture")
"""In which docs/upgrading.md replaces the programs. The writers' job takes the snapshots, too."""


class UpgradeLoop(WholeLoop):
    """Begins with all programs of ``old``. What that does not have, server or shapes, is there after the upgrade.

    A shape that is defined while it runs has all rows that its table has then, by a snapshot.
    """

    def __init__(self, folder: Path, old: Release, *, flush: str, write_unit: str) -> None:
        folder.mkdir(exist_ok=True)
        taken = SHAPES if old.has("shapes/where/subqueries.py") else [each for each in SHAPES if not each.inner]
        super().__init__(folder, flush=flush, write_unit=write_unit, shapes=taken)
        self.old = old
        self.releases = dict.fromkeys(ORDER, old)
        self._later = [each.definition for each in SHAPES if each not in taken]
        self._defined = [each.definition for each in taken]
        self._listen = f"127.0.0.1:{free_port()}"

    @property
    def url(self) -> str:
        return f"http://{self._listen}/v1/shape"

    def has(self, name: str) -> bool:
        """Whether the program runs."""
        return name in self._processes

    def define_another(self) -> None:
        """A shape more; and if capture is of this checkout, all that the older release did not have."""
        self._defined.append(shape(f"later-{len(self._defined)}", "public.users", where="id > 20"))
        if self.releases["capture"] is CHECKOUT:
            self._defined += self._later
            self._later = []
        self.rig.define(*self._defined)

    def await_snapshots(self) -> None:
        for each in self._defined[len(self.shapes) :]:
            self.await_snapshot(each["id"])

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
        settings = {
            "sink": {"log": f"{self.place}/log", "shapes": f"{self.place}/log_shapes"},
            "http": {"listen": self._listen},
            "poll": "200 ms",
        }
        self._config("serve").write_text(yaml.safe_dump(settings))
        if self.old.has("serve"):
            self.start("serve")
