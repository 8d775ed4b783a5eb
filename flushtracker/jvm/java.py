"""Checks for a Java that Spark can run on; also a program: ``python -m flushtracker.jvm.java``.

Standard library only: ``make`` runs this before any package is installed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flushtracker.errors import ConfigError

MINIMUM_MAJOR: Final = 17
TESTED_MAJORS: Final = (17, 21)
_INSTALL: Final = "install a JDK 17 or 21 (on Debian or Ubuntu: apt install openjdk-17-jre-headless)"
_VERSION_TIMEOUT_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A sufficiently new Java: its launcher, its major version, and the output of ``java -version``."""

    launcher: Path
    major: int
    version: str = field(default="", compare=False)

    @property
    def warning(self) -> str | None:
        """A warning about a version that Spark does not support, or ``None``."""
        if self.major in TESTED_MAJORS:
            return None
        return f"{self.launcher} is Java {self.major}; Spark supports Java 17 and 21, and this version is untested"


def check_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find the Java that Spark will start: ``JAVA_HOME``'s, else the first on the ``PATH``.

    A wrong ``JAVA_HOME`` is an error even if the ``PATH`` has a good Java, because Spark would not look there.

    Raises:
        ConfigError: there is none, it does not run, or it is older than 17.
    """
    launcher, advice = _find_launcher(environ)
    output = _version_text(launcher, advice)
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if found is None:
        raise ConfigError(f"{launcher} does not report its version, but prints {output[:80]!r}: {advice}")
    major = int(found[1])
    if major < MINIMUM_MAJOR:
        raise ConfigError(f"{launcher} is Java {major}, and Spark needs {MINIMUM_MAJOR} or newer: {advice}")
    return Java(launcher, major, output)


def _find_launcher(environ: Mapping[str, str]) -> tuple[Path, str]:
    """The launcher, and a remedy if it cannot be used."""
    home = environ.get("JAVA_HOME")
    if home:
        launcher = Path(home) / "bin" / "java"
        if not os.access(launcher, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, but there is no {launcher}: set it to a JDK 17 or 21, or unset it")
        return launcher, f"JAVA_HOME is {home}: set it to a JDK 17 or 21, or unset it"
    found = shutil.which("java", path=environ.get("PATH"))
    if found is None:
        raise ConfigError(f"Spark needs Java, and there is no java on the PATH: {_INSTALL}, or set JAVA_HOME")
    return Path(found), f"{_INSTALL}, or set JAVA_HOME to one"


def _version_text(launcher: Path, advice: str) -> str:
    """The output of ``java -version``, which Java prints on stderr."""
    try:
        done = subprocess.run(  # noqa: S603  the program that Spark would start
            [str(launcher), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{launcher} does not run, {error}: {advice}") from error
    return done.stderr + done.stdout


def main() -> int:
    """Print nothing if all is well; write a warning or an error to stderr."""
    try:
        warning = check_java().warning
    except ConfigError as error:
        sys.stderr.write(f"flushtracker: {error}\n")
        return error.exit_code
    if warning:
        sys.stderr.write(f"flushtracker: {warning}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
