"""``make pins``: ``constraints.txt``, with exact versions of all that any extra installs, on each supported Python.

A version stays while the ranges of ``pyproject.toml`` allow it. To raise one, edit its line, or pass what uv takes:
``python -m tests.pins --upgrade-package numpy``, or ``--upgrade`` for all.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_COMMAND: Final = (
    *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.10", "--no-python-downloads"),
    *("--no-header", "--no-annotate"),
)
_HEAD: Final = """\
# The exact versions that `make` installs and CI tests, with all that those need: `make pins` writes this file, and
# pyproject.toml has the ranges. They install on Python 3.10 to 3.14.
# pyspark, delta-spark and the jars of flushtracker/jvm/spark_jars.xml go together: raise them together.
# flushtracker/jvm/spark_version.py has older versions of pyspark that there are jars for.
"""
_MORE: Final = "# What only this checkout has besides, for the extras `dev` and `docs`.\n"


@dataclass(frozen=True, slots=True)
class Pin:
    """A line of ``constraints.txt``. A package has several lines if no one version installs on every Python."""

    name: str
    version: str
    marker: str = ""

    @classmethod
    def parse(cls, line: str) -> "Pin":
        """
        >>> Pin.parse("numpy==2.2.6 ; python_full_version < '3.11'")
        Pin(name='numpy', version='2.2.6', marker="python_full_version < '3.11'")
        """
        pin, _, marker = line.partition(";")
        name, _, version = pin.strip().partition("==")
        return cls(name, version, marker.strip())

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def user_pins(text: str) -> list[Pin]:
    """Those of ``constraints.txt`` that an extra of a user needs."""
    return list(_pins(text.split(_MORE, maxsplit=1)[0]))


def all_pins(text: str) -> list[Pin]:
    """Those of the extras ``dev`` and ``docs``, too."""
    return list(_pins(text))


def user_extras() -> list[str]:
    """The extras of flushtracker but ``dev`` and ``docs``."""
    return [extra for extra in metadata("flushtracker").get_all("Provides-Extra") or [] if extra not in {"dev", "docs"}]


def _pins(text: str) -> Iterator[Pin]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield Pin.parse(line)


def _resolved(before: str, extras: Iterable[str], *options: str) -> str:
    """The pins for these extras; those of ``before`` stay where they can."""
    with tempfile.TemporaryDirectory(prefix="flushtracker-pins-") as scratch:
        target = Path(scratch) / "pins.txt"
        target.write_text(before)
        chosen = [f"--extra={extra}" for extra in extras]
        command = [sys.executable, "-m", *_COMMAND, *chosen, *options, "--output-file", str(target), "pyproject.toml"]
        subprocess.run(command, cwd=ROOT, check=True)
        return target.read_text()


def main(options: list[str]) -> int:
    """Write ``constraints.txt`` of the checkout; the options are uv's."""
    file = ROOT / "constraints.txt"
    everything = _resolved(file.read_text(), ["dev"], *options)
    users = {pin.name for pin in _pins(_resolved(everything, user_extras()))}
    for_users = [pin for pin in _pins(everything) if pin.name in users]
    others = [pin for pin in _pins(everything) if pin.name not in users]
    file.write_text(_HEAD + "".join(f"{pin}\n" for pin in for_users) + _MORE + "".join(f"{pin}\n" for pin in others))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
