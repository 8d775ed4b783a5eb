"""A stop while the storage hangs."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.support.job_folder import JobFolder
from tests.support.processes import group_has_ended
from tests.support.sample_source import SampleSource
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 300


def test_stop_while_the_ack_table_hangs_ends_the_job_and_its_jvm(tmp_path: Path) -> None:
    """Whatever waits for the storage is given up; the next start replays the batch."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().transaction(2000)])
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.support.hung_storage", "3", "--config", str(job.config_file())]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=_ROOT, stderr=output, start_new_session=True) as running,
    ):
        try:
            wait_until(lambda: "hanging" in log.read_text() or running.poll() is not None, "the hang", _DEADLINE_S)
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 1, log.read_text()
            wait_until(lambda: group_has_ended(running.pid), "the end of the JVM and the workers", 60)
        finally:
            if not group_has_ended(running.pid):
                os.killpg(running.pid, signal.SIGKILL)
    assert "flushtracker track: not stopped after 3 s, so a storage may hang; exiting now" in log.read_text()
    assert not (tmp_path / "checkpoint/commits/0").exists()
