"""A fresh interpreter in which chosen packages cannot be imported, as if they were not installed."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_BLOCKER: Final = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_without(packages: Iterable[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the checkout with these top-level packages blocked; it may use ``sys``."""
    command = [sys.executable, "-c", _BLOCKER.format(blocked=sorted(packages)) + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=_ROOT)
