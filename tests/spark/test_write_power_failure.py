"""The writers' job on a disk that loses what was not synced, and the next start on what is left."""

import shutil
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flushtracker.config.write_config import ROLES
from flushtracker.errors import StateError
from flushtracker.trials.power_failure.unsynced_disk import UnsyncedDisk
from flushtracker.wal.log_offset import LogOffset
from tests.support.processes import run_to_end
from tests.support.seeds import every, in_turn
from tests.support.write_folder import WriteFolder
from tests.support.write_load import Load


def _failed_run(tmp_path: Path) -> tuple[WriteFolder, Load, UnsyncedDisk]:
    """A job whose machine loses its power right after the notifications of its third batch."""
    streams, load = WriteFolder(tmp_path / "streams"), Load()
    load.write(streams)
    job = streams.twin(tmp_path / "disk")
    disk = UnsyncedDisk(job.root, tmp_path / "synced")
    command = [sys.executable, "-m", "tests.support.killed_writer", "between notification and batch commit", "2"]
    done = run_to_end(disk.command([*command, "--config", str(job.config_file())]), start_new_session=True, timeout=300)
    disk.close()
    assert done.returncode == -9, done.stderr
    return job, load, disk


@every(3, 2)
@pytest.mark.parametrize("names", in_turn([False, True]))
def test_what_is_notified_survives_a_power_failure(
    spark: SparkSession,
    tmp_path: Path,
    names: bool,  # noqa: FBT001  a parameter
) -> None:
    """Spark syncs no checkpoint: a torn one is refused, and without any the log says where to continue."""
    job, load, disk = _failed_run(tmp_path)
    said: dict[str, LogOffset] = {}
    for file in job.notified():
        said |= file
    assert len(job.notified()) == 3
    state = tmp_path / "state"
    if names:
        disk.leave_names(state, seed=1)
        # Written back long ago, as the kernel does within half a minute.
        for name in ("flushtracker.json", "log_ends.json", "metadata"):
            shutil.copy(job.root / "checkpoint" / name, state / "checkpoint")
    else:
        disk.leave_synced(state)
    shutil.rmtree(job.root)
    left = WriteFolder(tmp_path / "streams").twin(job.root)
    for path in state.iterdir():
        if path.name not in ROLES:
            shutil.move(path, left.root / path.name)
    for shape_id, offset in said.items():
        assert load.shapes[shape_id].confirmed_rows(offset) <= {*left.log_rows(shape_id)}
    if names:
        with pytest.raises(StateError, match=r"set write\.checkpoint to a new path"):
            left.run(spark)
        shutil.rmtree(left.root / "checkpoint")
    left.run(spark)
    load.check(left)
