"""A Spark standalone cluster on this machine: a master and workers, each in its own process and folder.

The executors' Python has pandas, pyarrow and deltalake but not this package, and they do not start in the driver's
folder: they can import flushtracker only through ``--py-files``.
"""

import json
import os
import re
import signal
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final
from urllib.request import urlopen

import deltalake
import pyspark

from flushtracker.spark.dist import write_dist
from tests.support.job_folder import JobFolder
from tests.support.waiting import wait_until

DEADLINE_S: Final = 600
_ROOT: Final = Path(__file__).parents[2]
_SPARK_HOME: Final = Path(pyspark.__file__).parent
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# This environment variable identifies the processes of a cluster, whichever process started them.
_MARK: Final = "FLUSHTRACKER_TEST_CLUSTER"
# The JVMs of a test run for seconds, most of which optimizing compilation would take.
FAST_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Everything that an executor's Python needs: pandas, pyarrow, deltalake and what they need. Spark provides pyspark.
_EXECUTOR_PACKAGES: Final = (
    *("numpy", "numpy.libs", "pandas", "pyarrow", "pytz", "dateutil", "six.py", "tzdata"),
    *("deltalake", "arro3", "deprecated", "wrapt", "typing_extensions.py"),
)


class StandaloneCluster:
    """A context manager that starts the cluster with all its workers, and leaves none of its processes running.

    ``folder`` gets the logs, the workers' folders and, in ``dist``, the output of ``make dist``. Each worker has one
    core and one gigabyte, enough for one executor. ``java_options`` apply to every JVM; pass ``""`` for a long run.
    """

    def __init__(self, folder: Path, workers: int = 2, *, java_options: str = FAST_START) -> None:
        self.folder = folder
        self.dist = folder / "dist"
        self.master_url = ""
        self._worker_count = workers
        self._java_options = java_options
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._drivers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "StandaloneCluster":
        self.folder.mkdir(parents=True, exist_ok=True)
        write_dist(self.dist)
        self.executor_python = _make_executor_python(self.folder / "executor-python")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        # Port 0 picks a free port; the log states which.
        self._daemons.append(self._start_master("0"))
        self.master_url = self._find_in_master_log(r"Starting Spark master at (spark://\S+)")
        web = self._find_in_master_log(r"MasterWebUI to .*(http://\S+)")
        for number in range(self._worker_count):
            arguments = ("-c", "1", "-m", "1g", "-d", str(self.folder / f"worker-{number}"), self.master_url)
            worker = self._start_daemon(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments)
            self._daemons.append(worker)
        wait_until(lambda: _alive_workers(web) == self._worker_count, "the workers are registered", DEADLINE_S)

    def _start_master(self, port: str) -> subprocess.Popen[bytes]:
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.folder / 'recovery'}"
        return self._start_daemon("master", _MASTER, "--port", port, SPARK_DAEMON_JAVA_OPTS=recovery)

    def _start_daemon(self, name: str, java_class: str, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        command = [str(_SPARK_HOME / "bin" / "spark-class"), java_class, "--host", "127.0.0.1", "--webui-port", "0"]
        place = self.folder / name
        place.mkdir(exist_ok=True)
        environ = self._environ() | {"SPARK_DAEMON_MEMORY": "256m"} | environ
        return self._start_process(name, [*command, *arguments], place, environ)

    def _start_process(
        self, name: str, command: Sequence[str], cwd: Path, environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
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

    def _environ(self) -> dict[str, str]:
        return _plain_environ() | {
            _MARK: str(self.folder),
            "JAVA_TOOL_OPTIONS": self._java_options,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Killed executors leave their scratch files behind; keep them out of /tmp.
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
        }

    def _find_in_master_log(self, pattern: str) -> str:
        found = wait_until(lambda: re.search(pattern, self.log_of_master()), f"the master logs {pattern}", DEADLINE_S)
        return found[1]

    def submit(self, *arguments: str, cwd: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start ``spark-submit`` as docs/deploying.md does, then ``arguments``: more flags, the job and its arguments.

        See :meth:`start_driver`.
        """
        jars = ",".join(str(path) for path in sorted((self.dist / "jars").glob("*.jar")))
        flags = ["--master", self.master_url, "--jars", jars, "--py-files", str(self.dist / "flushtracker.zip")]
        return self.start_driver("spark-submit", *flags, *arguments, cwd=cwd, **environ)

    def submit_job(self, job: JobFolder) -> subprocess.Popen[bytes]:
        """Submit the tracking job on this folder's streams; it runs until it is stopped."""
        config = str(job.config_file(shape_groups=16, trigger_ms=100))
        return self.submit(str(_ROOT / "jobs" / "track_flushes.py"), "--config", config, cwd=job.root)

    def start_driver(self, *command: str, cwd: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start a program that submits to this cluster, in its own session; :meth:`log_of` returns its output.

        ``spark-submit`` is on its ``PATH``, and its environment names the Pythons of the driver and the executors.
        """
        ours = {
            "PATH": f"{_SPARK_HOME / 'bin'}:{os.environ['PATH']}",
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(self.executor_python),
        }
        name = f"driver-{len(self._drivers)}"
        self._drivers.append(self._start_process(name, command, cwd, self._environ() | ours | environ))
        return self._drivers[-1]

    def log_of(self, driver: subprocess.Popen[bytes]) -> str:
        """A driver's output so far."""
        return (self.folder / f"driver-{self._drivers.index(driver)}.log").read_text(errors="replace")

    def log_of_master(self) -> str:
        """The master's log so far: which executors it launched, and why."""
        return (self.folder / "master.log").read_text(errors="replace")

    def executor_pids(self) -> list[int]:
        """The process ids of the running executors' JVMs."""
        return [pid for pid in self._pids() if _EXECUTOR in _read(pid, "cmdline")]

    def kill_an_executor(self) -> int:
        """Send SIGKILL to an executor and return its process id. The master starts a replacement."""
        pid = wait_until(self.executor_pids, "an executor runs", DEADLINE_S)[0]
        os.kill(pid, signal.SIGKILL)
        return pid

    def restart_master(self) -> None:
        """Kill the master, and start it on its port again; its log begins anew."""
        os.kill(self._daemons[0].pid, signal.SIGKILL)
        self._daemons[0].wait(DEADLINE_S)
        self._daemons[0] = self._start_master(self.master_url.rsplit(":", 1)[1])
        self._find_in_master_log(r"(Starting Spark master at)")

    @staticmethod
    def kill_driver(driver: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to a driver's Python and its JVM."""
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def is_idle(self) -> bool:
        """Whether only the master and the workers run: no executor, and no Python that an executor has started."""
        return self._pids() == sorted(daemon.pid for daemon in self._daemons)

    def stop(self) -> None:
        """Kill every process of this cluster, including the drivers', and wait until all are gone."""
        wait_until(self._kill_all, "the cluster's processes are gone", DEADLINE_S)
        for process in (*self._drivers, *self._daemons):
            process.wait(DEADLINE_S)

    def _kill_all(self) -> bool:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not self._pids()

    def _pids(self) -> list[int]:
        mark = f"{_MARK}={self.folder}"
        pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in pids if mark in _read(pid, "environ").split("\0")]


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
    command = [str(python), "-c", "import pandas, pyarrow, deltalake; import flushtracker"]
    tried = subprocess.run(
        command, cwd=folder, env=_plain_environ(), capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert "No module named 'flushtracker'" in tried.stderr, tried.stderr
    return python


def _alive_workers(web: str) -> int:
    with urlopen(f"{web}/json/", timeout=DEADLINE_S) as response:  # noqa: S310  the master's own address
        return sum(worker["state"] == "ALIVE" for worker in json.load(response)["workers"])


def _read(pid: int, name: str) -> str:
    """A file of ``/proc`` about a process; empty if the process is gone or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
