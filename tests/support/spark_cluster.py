"""A cluster that runs Spark's executors, on this machine, and how the jobs are submitted to it.

The executors' Python has pandas, pyarrow, deltalake and msgspec but not this package, and they do not start in the
driver's folder: they can import flushtracker only through ``--py-files``.
"""

import os
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, TypeVar

import deltalake
import pyspark

from flushtracker.spark.dist import write_dist
from tests.support.job_folder import JobFolder
from tests.support.processes import run_to_end
from tests.support.waiting import wait_until

DEADLINE_S: Final = 600
_ROOT: Final = Path(__file__).parents[2]
SPARK_HOME: Final = Path(pyspark.__file__).parent
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
"""How the names of the executors' classes end: YARN has its own."""
# This environment variable identifies the processes of a cluster, whichever process started them.
MARK: Final = "FLUSHTRACKER_TEST_CLUSTER"
# The JVMs of a test run for seconds, most of which optimizing compilation would take.
FAST_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Everything that an executor's Python needs, with what that needs. Spark provides pyspark.
_EXECUTOR_PACKAGES: Final = (
    *("numpy", "numpy.libs", "pandas", "pyarrow", "pytz", "dateutil", "six.py", "tzdata"),
    *("deltalake", "arro3", "deprecated", "wrapt", "typing_extensions.py", "msgspec"),
)

_Cluster = TypeVar("_Cluster", bound="SparkCluster")


class SparkCluster:
    """A context manager that starts the cluster, and leaves none of its processes running.

    ``folder`` gets its logs and files and, in ``dist``, what ``flushtracker dist`` writes. ``java_options`` apply to
    every JVM; pass ``""`` for a long run.
    """

    def __init__(self, folder: Path, *, java_options: str = FAST_START) -> None:
        self.folder = folder
        self.dist = folder / "dist"
        self.master_url = ""
        self._java_options = java_options
        self.daemons: list[subprocess.Popen[bytes]] = []
        self._drivers: list[subprocess.Popen[bytes]] = []

    def __enter__(self: _Cluster) -> _Cluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_dist(self.dist)
        self.executor_python = _make_executor_python(self.folder / "executor-python")
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemons, and set ``master_url`` once the cluster accepts applications."""
        raise NotImplementedError

    def start_process(
        self, name: str, command: Sequence[str], cwd: Path, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a program in its own session, which logs to the file of this name."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def environ(self) -> dict[str, str]:
        """The environment of each process."""
        return _plain_environ() | {
            MARK: str(self.folder),
            "JAVA_TOOL_OPTIONS": self._java_options,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Killed executors leave their scratch files behind; keep them out of /tmp.
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
        }

    def submit(self, *arguments: str, cwd: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start ``spark-submit`` as docs/deploying.md does, then ``arguments``: more flags, the job and its arguments.

        See :meth:`start_driver`.
        """
        jars = ",".join(str(path) for path in sorted((self.dist / "jars").glob("*.jar")))
        flags = ["--master", self.master_url, "--jars", jars, "--py-files", str(self.dist / "flushtracker.zip")]
        return self.start_driver("spark-submit", *flags, *self.flags(), *arguments, cwd=cwd, **environ)

    def flags(self) -> list[str]:
        """What this kind of cluster needs besides."""
        return []

    def submit_job(self, job: JobFolder) -> subprocess.Popen[bytes]:
        """Submit the tracking job on this folder's streams; it runs until it is stopped."""
        config = str(job.config_file(shape_groups=16, trigger_ms=100))
        return self.submit(str(_ROOT / "jobs" / "track_flushes.py"), "--config", config, cwd=job.root)

    def start_driver(self, *command: str, cwd: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start a program that submits to this cluster, in its own session; :meth:`log_of` returns its output.

        ``spark-submit`` is on its ``PATH``, and its environment names the Pythons of the driver and the executors.
        """
        ours = {
            "PATH": f"{SPARK_HOME / 'bin'}:{os.environ['PATH']}",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(self.executor_python),
        }
        name = f"driver-{len(self._drivers)}"
        self._drivers.append(self.start_process(name, command, cwd, self.environ() | ours | environ))
        return self._drivers[-1]

    def log_of(self, driver: subprocess.Popen[bytes]) -> str:
        """A driver's output so far."""
        return (self.folder / f"driver-{self._drivers.index(driver)}.log").read_text(errors="replace")

    def executor_pids(self) -> list[int]:
        """The process ids of the running executors' JVMs."""
        # A shell that has started one has the whole line as an argument.
        return [pid for pid in self.pids() if any(word.endswith(_EXECUTOR) for word in _words(pid, "cmdline"))]

    def kill_an_executor(self) -> int:
        """Send SIGKILL to an executor and return its process id. The cluster starts a replacement."""
        pid = wait_until(self.executor_pids, "an executor runs", DEADLINE_S)[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    @staticmethod
    def kill_driver(driver: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to a driver's Python and its JVM."""
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def stop(self) -> None:
        """Kill every process of this cluster, including the drivers', and wait until all are gone."""
        wait_until(self._kill_all, "the cluster's processes are gone", DEADLINE_S)
        for process in (*self._drivers, *self.daemons):
            process.wait(DEADLINE_S)

    def _kill_all(self) -> bool:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not self.pids()

    def pids(self) -> list[int]:
        """The process ids of all that belongs to it."""
        mark = f"{MARK}={self.folder}"
        pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if mark in _words(pid, "environ")]


def _plain_environ() -> dict[str, str]:
    """This process's environment without variables that could lead a child process to the checkout."""
    ours = ("PYTHON", "PYSPARK", "SPARK", "FLUSHTRACKER")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _make_executor_python(folder: Path) -> Path:
    """Create a Python with only the packages that docs/deploying.md requires of executors, linked from this one."""
    venv.create(folder, symlinks=True)
    # Not beside pyspark, which an environment over another one has as its own.
    ours = Path(deltalake.__file__).parents[1]
    theirs = next((folder / "lib").glob("python*/site-packages"))
    for name in _EXECUTOR_PACKAGES:
        if (ours / name).exists():
            (theirs / name).symlink_to(ours / name)
    python = folder / "bin" / "python"
    command = [str(python), "-c", "import pandas, pyarrow, deltalake, msgspec; import flushtracker"]
    tried = run_to_end(command, cwd=folder, env=_plain_environ(), timeout=DEADLINE_S)
    assert "No module named 'flushtracker'" in tried.stderr, tried.stderr
    return python


def _words(pid: int, name: str) -> list[str]:
    """A list in ``/proc`` about a process; empty if the process is gone or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").split("\0")
    except OSError:
        return []
