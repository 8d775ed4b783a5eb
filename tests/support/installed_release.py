"""``Release``: what programs are started of, this checkout or the wheel of a commit."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.capture_rig import ROOT
from tests.support.processes import run_to_end

_BUILD: Final = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@dataclass(frozen=True)
class Release:
    """``folder`` has the package; all others are those of this environment, and the jars those of this checkout."""

    name: str
    folder: Path

    def command(self, *arguments: str) -> list[str]:
        """Python's, in the folder: a current directory comes before ``PYTHONPATH``, also in Spark's workers."""
        return ["env", "-C", str(self.folder), sys.executable, *arguments]

    def environ(self) -> Mapping[str, str]:
        jars = os.environ.get("FLUSHTRACKER_JARS") or str(ROOT / ".jars")
        return {**os.environ, "PYTHONPATH": str(self.folder), "FLUSHTRACKER_JARS": jars}

    def has(self, part: str) -> bool:
        """Whether the package has this room or module."""
        return (self.folder / "flushtracker" / part).exists()

    def run(self, *arguments: str, text: str = "") -> str:
        """What Python prints with these arguments and this input; raises ``AssertionError`` if it fails."""
        command = self.command(*arguments)
        done = run_to_end(command, input=text, env=self.environ(), timeout=300)
        assert done.returncode == 0, f"{self.name} ended with {done.returncode}: {done.stderr}"
        return done.stdout


CHECKOUT: Final = Release("this checkout", ROOT)


def release_of(revision: str, folder: Path) -> Release:
    """The release of a commit, in a new folder."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-release-") as tree:
        archive = subprocess.run(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=tree, input=archive, check=True)
        subprocess.run([sys.executable, "-c", _BUILD, tree], cwd=tree, capture_output=True, check=True)
        (wheel,) = Path(tree).glob("*.whl")
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)], check=True)
    release = Release(revision, folder)
    found = release.run("-c", "import flushtracker; print(flushtracker.__file__)")
    assert found.startswith(str(folder)), f"{revision} is in {folder}, and flushtracker is {found}"
    return release
