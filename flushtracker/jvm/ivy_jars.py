"""Jars locked in an Ivy file, fetched once with the Ivy that pyspark includes, and verified then.

Three environment variables determine where they are stored and fetched from:

``FLUSHTRACKER_JARS``
    a folder that already contains the jars, laid out like ``.jars``; nothing is fetched, and nothing verified.
``XDG_CACHE_HOME``
    the user's cache, for an installed wheel; ``~/.cache`` by default. In a checkout the folder is ``.jars``.
``FLUSHTRACKER_MAVEN``
    the URL of another Maven repository to fetch from.
"""

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from flushtracker.errors import ConfigError
from flushtracker.jvm.jar_lock import read_lock, read_sums, sha256_of
from flushtracker.jvm.java import check_java
from flushtracker.jvm.spark_version import installed_version, supported_minor

_CHECKOUT: Final = Path(__file__).parents[2]
_REMEDY: Final = (
    "Set FLUSHTRACKER_MAVEN to the URL of another Maven repository, or FLUSHTRACKER_JARS to a folder with the jars"
)

# Ivy's shared cache would keep another repository's responses, so each fetch has its own cache. Without POMs, each jar
# is one request. The timeouts end a fetch from an unresponsive server.
_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="maven"/>
  <caches defaultCacheDir={cache}/>
  <timeout-constraints>
    <timeout-constraint name="fetch" connectionTimeout="10000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" usepoms="false" timeoutConstraint="fetch"{root}/>
  </resolvers>
</ivysettings>
"""


@dataclass(frozen=True, slots=True)
class JarSet:
    """The jars named in ``ivy_xml``, each with its version and ``transitive="false"``, and a SHA-256 in a file beside
    it.

    ``owner`` is what needs them, for messages; ``command`` fetches them; ``folder`` is their subfolder of ``.jars``, if
    any, and ends in a slash. With ``of_spark``, Ivy's configurations are versions of Spark, and the set is for the
    installed one.
    """

    ivy_xml: Path
    owner: str
    megabytes: int
    command: str
    folder: str = ""
    of_spark: bool = False

    def names(self) -> tuple[str, ...]:
        """The file name of each jar below ``.jars``, such as ``delta-storage-4.4.0.jar``.

        Raises:
            ConfigError: there are none for the installed Spark, or no Spark is installed.
        """
        locked, chosen = read_lock(self.ivy_xml), self._configuration()
        if chosen not in locked:
            raise ConfigError(
                f"there are no jars for {self.owner} with Spark {chosen}, but with {', '.join(locked)}: "
                "install that, or name jars of another publisher in spark.jars of the section spark"
            )
        return tuple(f"{self.folder}{jar.file_name}" for jar in locked[chosen])

    def _configuration(self) -> str:
        return supported_minor(installed_version()) if self.of_spark else "default"

    def paths(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """The paths of the jars; cheap, and starts no JVM.

        Raises:
            ConfigError: one is missing or not a jar; the message states how to get it.
        """
        folder = jar_folder(environ)
        faults = self._faults(folder)
        if not faults:
            return [folder / name for name in self.names()]
        if environ.get("FLUSHTRACKER_JARS"):
            listed = "; ".join(f"{name} {fault}" for name, fault in faults.items())
            raise ConfigError(f"FLUSHTRACKER_JARS is {folder}: {listed}. Put them there, or unset it")
        raise ConfigError(
            f"{self._count(faults)} extra jars for {self.owner} are not in {folder}: run `{self.command}`, "
            "or set FLUSHTRACKER_JARS to a folder that has them"
        )

    def fetch(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Fetch the jars unless they are already there, and return their paths.

        An interrupted fetch leaves no jar under its final name, so the next call starts over.

        Raises:
            ConfigError: they cannot be fetched, one has another checksum than in the lock, or ``FLUSHTRACKER_JARS``
                names a folder where some are missing.
        """
        folder = jar_folder(environ)
        if environ.get("FLUSHTRACKER_JARS") or not self._faults(folder):
            return self.paths(environ)
        repository = environ.get("FLUSHTRACKER_MAVEN")
        shown = _without_password(repository) if repository else "Maven Central"
        java = check_java(environ)
        _print(f"fetching {len(self.names())} jars for {self.owner} (about {self.megabytes} MB) from {shown} ...")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fetch_into(folder, java.launcher, repository, shown)
        except OSError as error:
            raise ConfigError(f"the jars for {self.owner} cannot be stored in {folder}: {error}") from error
        _print(f"the jars are in {folder}")
        return self.paths(environ)

    def _fetch_into(self, folder: Path, java: Path, repository: str | None, shown: str) -> None:
        log_file = folder / "fetch.log"
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            fetched = Path(scratch) / "jars"
            pattern = f"{fetched}/{self.folder}[artifact]-[revision].[ext]"
            log = run_ivy(self.ivy_xml, self._configuration(), java, Path(scratch), repository, pattern)
            if repository:
                log = log.replace(repository, shown)
            faults = self._faults(fetched)
            if faults:
                log_file.write_text(log, encoding="utf-8")
                raise ConfigError(
                    f"{self._count(faults)} jars for {self.owner} could not be fetched from {shown}, {_reason(log)} "
                    f"(Ivy's log: {log_file}). {_REMEDY}"
                )
            self._require_sums(fetched, shown)
            # Jars of another Spark stay: an archive of its classes depends on their times.
            for name in self._faults(folder):
                (folder / name).parent.mkdir(exist_ok=True)
                (fetched / name).replace(folder / name)
            log_file.unlink(missing_ok=True)

    def _require_sums(self, fetched: Path, shown: str) -> None:
        sums = read_sums(self.ivy_xml)
        for name in self.names():
            jar = fetched / name
            found, expected = sha256_of(jar), sums[jar.name]
            if found != expected:
                raise ConfigError(
                    f"{name} from {shown} is not the jar that this release was tested with: its SHA-256 is {found}, "
                    f"and should be {expected}. None was kept. Set FLUSHTRACKER_MAVEN to the URL of another Maven "
                    f"repository; if this jar is what you want, put it into a folder and set FLUSHTRACKER_JARS to that"
                )

    def _faults(self, folder: Path) -> dict[str, str]:
        """What is wrong in the folder, by the name of each unusable jar."""
        faults = {}
        for name in self.names():
            path = folder / name
            if not path.is_file():
                faults[name] = "is missing"
            elif not zipfile.is_zipfile(path):
                faults[name] = "is truncated or not a jar"
        return faults

    def _count(self, faults: Mapping[str, str]) -> str:
        return f"{len(faults)} of {len(self.names())}"


def jar_folder(environ: Mapping[str, str]) -> Path:
    """``FLUSHTRACKER_JARS``, else ``.jars`` of the checkout, or the user's cache for an installed wheel."""
    named = environ.get("FLUSHTRACKER_JARS")
    if named:
        return Path(named).absolute()
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT / ".jars"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "flushtracker"


def spark_jar_folder() -> Path:
    """pyspark's own jars, found without importing pyspark, which takes a second."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("pyspark is not installed: run pip install 'flushtracker[spark]'")
    return Path(spec.origin).parent / "jars"


def run_ivy(ivy_xml: Path, configuration: str, java: Path, scratch: Path, repository: str | None, pattern: str) -> str:
    """Run Ivy to store the jars as ``pattern``; return its output, even if it failed."""
    root = f" root={quoteattr(repository)}" if repository else ""
    settings = scratch / "ivysettings.xml"
    settings.write_text(_SETTINGS.format(cache=quoteattr(str(scratch / "cache")), root=root), encoding="utf-8")
    command = [str(java), "-jar", str(_ivy_jar()), "-settings", str(settings), "-ivy", str(ivy_xml)]
    command += ["-confs", configuration]
    done = subprocess.run(  # noqa: S603  our own command, and the user's own Java
        [*command, "-retrieve", pattern],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout


def _reason(log: str) -> str:
    """Why Ivy failed, from its log: ``ConnectException: Connection refused``, ``…: not found``."""
    for pattern in (r"\(java[\w.]*\.(\w+(?:: [^)\n]{1,120})?)\)", r":: \S+#(\S+: [^:\n]+)", r"((?:Error|Exception).+)"):
        found = re.search(pattern, log)
        if found:
            return found[1].strip()
    return "Ivy gave no reason"


def _ivy_jar() -> Path:
    folder = spark_jar_folder()
    found = sorted(folder.glob("ivy-*.jar"))
    if not found:
        raise ConfigError(f"pyspark has no ivy-*.jar in {folder}: {_REMEDY}")
    return found[-1]


def _without_password(repository: str) -> str:
    """The URL without its user and password; raises ``ConfigError`` if it is not a URL."""
    try:
        parts = urlsplit(repository)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https", "file"}:
        raise ConfigError("FLUSHTRACKER_MAVEN is not a URL that starts with https://, http:// or file://")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
