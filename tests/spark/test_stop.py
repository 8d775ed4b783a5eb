"""A stop in the middle of a batch that takes too long, or hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from flushtracker.spark import query_run
from flushtracker.tracking.job import driver
from flushtracker.tracking.job.query import track_flushes
from tests.support.job_folder import JobFolder
from tests.support.processes import group_has_ended
from tests.support.sample_source import SampleSource
from tests.support.seeds import every
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[2]
_DEADLINE_S: Final = 300


def test_batch_that_takes_too_long_is_interrupted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job ends without an error, and the next start reads the batch again."""
    job, stop = JobFolder(tmp_path), Event()
    source = SampleSource()
    job.write([source.transaction(2000)])

    def take_long(_rows: Any) -> None:
        stop.set()
        spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(600))

    with monkeypatch.context() as slow:
        slow.setattr(query_run, "_COMMIT_TIMEOUT_S", 0.5)
        slow.setattr(driver, "raise_first_error", take_long)
        track_flushes(spark, job.config(), stop)
    assert "interrupting the running batch batch_id=0" in caplog.text
    assert job.acks() == []
    job.run(spark)
    assert job.acks() == [(source.name, 0, 2000)]


@every(3, 2)
def test_stop_while_the_ack_table_hangs_ends_the_job_and_its_jvm(tmp_path: Path) -> None:
    """Whatever waits for the storage is given up; the next start reruns the batch."""
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
