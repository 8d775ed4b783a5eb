"""The writers' job on a disk that loses what was not synced, and the next start on what is left."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.write_config import ROLES
from flushtracker.errors import FlushtrackerError
from flushtracker.wal.log_offset import LogOffset
from tests.spark.test_writers import Load
from tests.support.unsynced_disk import UnsyncedDisk
from tests.support.write_folder import WriteFolder


def _failed_run(tmp_path: Path) -> tuple[WriteFolder, Load, UnsyncedDisk]:
    """A job whose machine loses its power right after the notifications of its third batch."""
    streams, load = WriteFolder(tmp_path / "streams"), Load()
    load.write(streams)
    job = streams.twin(tmp_path / "disk")
    disk = UnsyncedDisk(job.root, tmp_path / "synced")
    command = [sys.executable, "-m", "tests.support.killed_writer", "between notification and batch commit", "2"]
    done = subprocess.run(
        [*command, "--config", str(job.config_file())],
        start_new_session=True,
        env={**os.environ, **disk.environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == -9, done.stderr
    return job, load, disk


@pytest.mark.parametrize("names", [False, True])
def test_what_is_notified_survives_a_power_failure(
    spark: SparkSession,
    tmp_path: Path,
    names: bool,  # noqa: FBT001  a parameter
) -> None:
    """Spark syncs no checkpoint: what is left of it is refused, or right; without it the log says where to continue."""
    job, load, disk = _failed_run(tmp_path)
    left = WriteFolder(tmp_path / "streams").twin(tmp_path / "left")
    state = tmp_path / "state"
    if names:
        disk.leave_names(state, seed=1)
    else:
        disk.leave_synced(state)
    for path in state.iterdir():
        if path.name not in ROLES:
            shutil.move(path, left.root / path.name)
    said: dict[str, LogOffset] = {}
    for file in job.notified():
        said |= file
    assert len(job.notified()) == 3
    for shape_id, offset in said.items():
        assert load.shapes[shape_id].confirmed_rows(offset) <= {*left.log_rows(shape_id)}
    try:
        left.run(spark)
    except FlushtrackerError:
        shutil.rmtree(left.root / "checkpoint")
        left.run(spark)
    load.check(left)
