"""Credentials that are renewed while a job runs, on a real server with the API of S3."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from deltalake.exceptions import DeltaError

from flushtracker.shape_log.write.stored_rows import FEW_BYTES
from flushtracker.tracking.acks.ack_reader import AckReader
from tests.support.job_folder import JobFolder
from tests.support.object_store import store_options
from tests.support.renewed_credentials import RenewedCredentials, renewed_credentials
from tests.support.s3_server import running_s3
from tests.support.s3_session import s3_store
from tests.support.sample_source import SampleSource
from tests.support.seeds import every
from tests.support.shape_transactions import Transactions
from tests.support.waiting import wait_until
from tests.support.write_folder import WriteFolder

_STALE_S: Final = 3.0
"""Until each library has asked for the next credentials: these expire in a minute, Spark's asks a minute before."""

_LARGE: Final = {"v": "x" * (FEW_BYTES + 1)}
"""A row that is too large for the driver."""


@pytest.mark.soak
def test_job_continues_while_the_credentials_of_its_container_are_renewed(tmp_path: Path) -> None:
    """Spark's side as deltalake's: each batch has other keys, and the store refuses those before.

    Each library has its keys until shortly before they expire, a minute in Spark's, and then gets the next ones.
    """
    with running_s3() as s3, renewed_credentials(s3, tmp_path) as credentials:
        job, source = JobFolder(tmp_path / "job"), SampleSource()
        acks = AckReader("s3://bucket/renewed/acks", store_options(s3.port))
        with _running("track", job.config_file(trigger_ms=100), s3.port, credentials) as require_running:
            for lsn in (2000, 3000, 4000):
                job.write([source.transaction(lsn, "a"), source.flushed("a", lsn)])

                def is_acked(lsn: int = lsn) -> bool:
                    require_running()
                    return acks.last_ack(source.name) == lsn

                wait_until(is_acked, f"an ack at {lsn}", 240)
                credentials.renew(_STALE_S)


@every(4, 0)
def test_executors_of_the_writers_ask_for_renewed_credentials_themselves(tmp_path: Path) -> None:
    """They write files of large rows, with keys that their own processes have asked for."""
    with running_s3() as s3, renewed_credentials(s3, tmp_path) as credentials:
        job, shape = WriteFolder(tmp_path / "job"), Transactions("a", random.Random(1))  # noqa: S311  a test
        file = job.config_file()
        file.write_text(file.read_text().replace("available_now", "100 ms"))
        with _running("write", file, s3.port, credentials) as require_running:
            for _ in range(3):
                shape.grow(1)
                lsn = max(shape.items)
                shape.items[lsn] = tuple(replace(item, value=_LARGE) for item in shape.items[lsn])
                job.write(shape.events([lsn]))

                def is_written() -> bool:
                    require_running()
                    return _rows(s3.port) == shape.expected_rows()

                wait_until(is_written, f"the transaction at {lsn} in the log", 240)
                credentials.renew(_STALE_S)


def _rows(port: int) -> list[tuple[int, int, str]]:
    try:
        rows = s3_store(port).rows("renewed/log", ["tx_offset", "op_offset", "operation"])
    except DeltaError:
        return []
    return sorted((row["tx_offset"], row["op_offset"], row["operation"]) for row in rows)


@contextmanager
def _running(command: str, config: Path, port: int, credentials: RenewedCredentials) -> Iterator[Callable[[], None]]:
    """A job with everything on the store, which the environment names; yields what fails if the job has ended."""
    # The environment has all that the job needs.
    file, log = replace(s3_store(port), stores={}).take(config, "renewed"), config.with_suffix(".log")
    arguments = [sys.executable, "-m", "flushtracker", command, "--config", str(file)]
    with (
        log.open("wb") as output,
        subprocess.Popen(arguments, env={**os.environ, **credentials.env}, stderr=output) as process,
    ):

        def require_running() -> None:
            assert process.poll() is None, log.read_text()

        try:
            yield require_running
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()
