"""A fresh interpreter in which chosen packages cannot be imported, as if they were not installed."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_BLOCKER: Final = """
import sys
from importlib.machinery import PathFinder

class Unblocked(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {blocked}:
            return PathFinder.find_spec(name, path, target)

# In its place: a library that only looks whether another one is there must find that it is not.
sys.meta_path[sys.meta_path.index(PathFinder)] = Unblocked
"""


def run_without(packages: Iterable[str], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the checkout with these top-level packages blocked; it may use ``sys``."""
    command = [sys.executable, "-c", _BLOCKER.format(blocked=sorted(packages)) + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=_ROOT)
