"""Credentials that are renewed while a job runs, on a real server with the API of S3."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from flushtracker.delta.acks.reader import AckReader
from tests.support.job_folder import JobFolder
from tests.support.object_store import storage_section, store_options
from tests.support.renewed_credentials import renewed_credentials
from tests.support.s3_server import running_s3
from tests.support.s3_session import s3_store
from tests.support.sample_source import SampleSource
from tests.support.waiting import wait_until

_STALE_S: Final = 3.0
"""Until each library has asked for the next credentials: these expire in a minute, Spark's asks a minute before."""


@pytest.mark.long
def test_job_continues_while_the_credentials_of_its_container_are_renewed(tmp_path: Path) -> None:
    """Spark's side as deltalake's: each batch has other keys, and the store refuses those before.

    Each library has its keys until shortly before they expire, a minute in Spark's, and then gets the next ones.
    """
    with running_s3() as s3, renewed_credentials(s3, tmp_path) as credentials:
        job, source = JobFolder(tmp_path / "job"), SampleSource()
        file = s3_store(s3.port).take(job.config_file(trigger_ms=100), "renewed")
        # The environment has all that the job needs.
        file.write_text(file.read_text().removeprefix(storage_section(s3.port)))
        acks = AckReader("s3://bucket/renewed/acks", store_options(s3.port))
        command = [sys.executable, "-m", "flushtracker", "track", "--config", str(file)]
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(command, env={**os.environ, **credentials.env}, stderr=log) as process,
        ):
            try:
                for lsn in (2000, 3000, 4000):
                    job.write([source.transaction(lsn, "a"), source.flushed("a", lsn)])

                    def is_acked(lsn: int = lsn) -> bool:
                        assert process.poll() is None, (tmp_path / "log").read_text()
                        return acks.last_ack(source.name) == lsn

                    wait_until(is_acked, f"an ack at {lsn}", 240)
                    credentials.renew(_STALE_S)
            finally:
                process.terminate()
    assert process.returncode == 0, (tmp_path / "log").read_text()
