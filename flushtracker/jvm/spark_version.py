"""The installed Spark, and the versions with jars; also a program.

``python -m flushtracker.jvm.spark_version 4.0`` prints the pyspark that tests of Spark 4.0 run with. Standard library
only: ``make`` runs this before any package is installed.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError

LOCKED: Final = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
"""The pyspark of each minor version with a Kafka source in ``spark_jars.xml``. CI tests the last, and the first in
part.
"""


def installed_version() -> str:
    """The version of pyspark, found without importing it, which takes a second."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("pyspark is not installed: run pip install 'flushtracker[spark]'")
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"""__version__.*=\s*["'](.+?)["']""", text)
    if found is None:
        raise ConfigError(f"pyspark in {Path(spec.origin).parent} does not tell its version: install it again")
    return found[1]


def supported_minor(version: str) -> str:
    """The minor version, such as ``4.2`` for ``4.2.0``; raises ``ConfigError`` if there are no jars for it.

    >>> supported_minor("4.0.1")
    '4.0'
    """
    minor = ".".join(version.split(".")[:2])
    if minor not in LOCKED:
        raise ConfigError(
            f"this is Spark {version}, and this release has jars for {', '.join(LOCKED)}: "
            f"run pip install 'flushtracker[spark]', or choose a cluster of one of them"
        )
    return minor


def main(arguments: list[str]) -> int:
    """Print the pyspark for the minor version given as the only argument; return the exit code."""
    try:
        (minor,) = arguments
        sys.stdout.write(LOCKED[minor] + "\n")
    except (KeyError, ValueError):
        sys.stderr.write(f"flushtracker: expected one version of Spark: {', '.join(LOCKED)}\n")
        return ConfigError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
