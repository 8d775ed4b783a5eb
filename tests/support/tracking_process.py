"""The tracking job of the closed loop as a process of its own, which kills itself at a chosen point."""

import json
import os
import signal
import subprocess
import sys
from typing import Final
from urllib.error import URLError

from flushtracker.local.free_ports import free_port
from flushtracker.status.job_status import JobStatus
from flushtracker.status.program_status import parse_status
from tests.support.capture_rig import ROOT, CaptureRig
from tests.support.config_file import merged, write_config
from tests.support.spark_cluster import FAST_START
from tests.support.status_program import get_json

_TIMEOUT_S: Final = 60


class TrackingProcess:
    """Acknowledges by itself what the topics of ``rig`` say. Close it when done; ``tracker.log`` has its output."""

    def __init__(self, rig: CaptureRig) -> None:
        self._log = rig.folder / "tracker.log"
        self._file = rig.folder / "tracker.yaml"
        self._armed = rig.folder / "armed"
        self._url = f"http://127.0.0.1:{(port := free_port())}/status.json"
        self._process: subprocess.Popen[bytes] | None = None
        job = {"checkpoint": str(rig.folder / "checkpoint"), "shape_groups": 2, "shuffle_partitions": 1}
        changes = {"track": {**job, "trigger": "100 ms"}, "status": {"listen": f"127.0.0.1:{port}"}}
        write_config(self._file, merged(rig.settings, changes))

    def start(self, point: str, passes: int) -> None:
        """Start it; it kills itself at ``point`` of ``tests.support.killed_job``, after so many passes since `arm`."""
        self._armed.unlink(missing_ok=True)
        count = f"{passes}@{self._armed}"
        command = [sys.executable, "-m", "tests.support.killed_job", point, count, "--config", str(self._file)]
        environ = {**os.environ, "JAVA_TOOL_OPTIONS": FAST_START}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=ROOT, env=environ, start_new_session=True
            )

    def arm(self) -> None:
        """From now on each pass counts: before that, a busy machine decides how many there are."""
        self._armed.touch()

    def step(self) -> None:
        """It goes on by itself: it runs, or was killed."""
        assert self._code() in {None, -signal.SIGKILL}, self.log()

    def is_killed(self) -> bool:
        return self._code() is not None

    def _code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def status(self) -> JobStatus | None:
        """What it reports, ``None`` while it starts."""
        assert not self.is_killed(), self.log()
        try:
            found = parse_status(json.dumps(get_json(self._url)).encode())
        except (URLError, ConnectionError):
            return None
        assert isinstance(found, JobStatus)
        return found

    def log(self) -> str:
        return self._log.read_text()[-3000:]

    def close(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_TIMEOUT_S)
