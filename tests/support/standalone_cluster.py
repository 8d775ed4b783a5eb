"""A Spark standalone cluster on this machine: a master and workers, each in its own process and folder."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from tests.support.spark_cluster import DEADLINE_S, FAST_START, SPARK_HOME, SparkCluster
from tests.support.waiting import wait_until

_MASTER: Final = "org.apache.spark.deploy.master.Master"


class StandaloneCluster(SparkCluster):
    """A master with its workers. Each worker has one core and one gigabyte, enough for one executor."""

    def __init__(self, folder: Path, workers: int = 2, *, java_options: str = FAST_START) -> None:
        super().__init__(folder, java_options=java_options)
        self._worker_count = workers

    def start(self) -> None:
        # Port 0 picks a free port; the log states which.
        self.daemons.append(self._start_master("0"))
        self.master_url = self._find_in_master_log(r"Starting Spark master at (spark://\S+)")
        web = self._find_in_master_log(r"MasterWebUI to .*(http://\S+)")
        for number in range(self._worker_count):
            arguments = ("-c", "1", "-m", "1g", "-d", str(self.folder / f"worker-{number}"), self.master_url)
            worker = self._start_daemon(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *arguments)
            self.daemons.append(worker)
        wait_until(lambda: _alive_workers(web) == self._worker_count, "the workers are registered", DEADLINE_S)

    def _start_master(self, port: str) -> subprocess.Popen[bytes]:
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.folder / 'recovery'}"
        return self._start_daemon("master", _MASTER, "--port", port, SPARK_DAEMON_JAVA_OPTS=recovery)

    def _start_daemon(self, name: str, java_class: str, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        command = [str(SPARK_HOME / "bin" / "spark-class"), java_class, "--host", "127.0.0.1", "--webui-port", "0"]
        place = self.folder / name
        place.mkdir(exist_ok=True)
        environ = self.environ() | {"SPARK_DAEMON_MEMORY": "256m"} | environ
        return self.start_process(name, [*command, *arguments], place, environ)

    def _find_in_master_log(self, pattern: str) -> str:
        found = wait_until(lambda: re.search(pattern, self.log_of_master()), f"the master logs {pattern}", DEADLINE_S)
        return found[1]

    def log_of_master(self) -> str:
        """The master's log so far: which executors it launched, and why."""
        return (self.folder / "master.log").read_text(errors="replace")

    def restart_master(self) -> None:
        """Kill the master, and start it on its port again; its log begins anew."""
        os.kill(self.daemons[0].pid, signal.SIGKILL)
        self.daemons[0].wait(DEADLINE_S)
        self.daemons[0] = self._start_master(self.master_url.rsplit(":", 1)[1])
        self._find_in_master_log(r"(Starting Spark master at)")

    def is_idle(self) -> bool:
        """Whether only the master and the workers run: no executor, and no Python that an executor has started."""
        return self.pids() == sorted(daemon.pid for daemon in self.daemons)


def _alive_workers(web: str) -> int:
    with urlopen(f"{web}/json/", timeout=DEADLINE_S) as response:  # noqa: S310  the master's own address
        return sum(worker["state"] == "ALIVE" for worker in json.load(response)["workers"])
