"""A driver that another one has replaced, when Spark has written the offsets of its next batch, and no task has run."""

from pathlib import Path
from typing import Any, cast

import pytest

from flushtracker.delta.registry_table import RegistryTable
from flushtracker.errors import SinkError
from flushtracker.shape_log.table.claim import LogClaim
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.write.driver import LogTables, WriteDriver
from flushtracker.shape_log.write.live_write_status import LiveWriteStatus
from flushtracker.spark.batch_driver import BatchDriver
from flushtracker.tracking.acks.ack_table import AckTable
from flushtracker.tracking.job.driver import AckDriver
from flushtracker.tracking.job.live_job_status import LiveJobStatus


class _Batch:
    """Fails if any of it is used: each action runs tasks, which write state."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the batch was run, by {name}")


def _track(folder: str) -> AckDriver:
    acks = AckTable(folder)
    acks.fence_others()
    return AckDriver(acks, cast("Any", None), LiveJobStatus(1000))


def _write(folder: str) -> WriteDriver:
    table = create_shape_log(f"{folder}/log")
    claim = LogClaim(table)
    claim.take()
    registry = RegistryTable(f"{folder}/shapes", create=True)
    tables = LogTables(row_files(table, {}), claim, LogFiles(table, {}), registry)
    return WriteDriver(tables, cast("Any", None), 0, LiveWriteStatus())


@pytest.mark.parametrize("started", [_track, _write])
def test_replaced_driver_ends_before_a_task_of_its_batch_runs(tmp_path: Path, started: Any) -> None:
    """Its tasks would replace state of the next driver, of which the batch has other offsets."""
    stale: BatchDriver = started(str(tmp_path / "tables"))
    started(str(tmp_path / "tables"))
    with pytest.raises(SinkError, match="fenced: another"):
        stale.handle_batch(cast("Any", _Batch()), 0)


@pytest.mark.parametrize("started", [_track, _write])
def test_current_driver_runs_its_batch(tmp_path: Path, started: Any) -> None:
    """So the test above says something."""
    started(str(tmp_path / "tables"))
    current: BatchDriver = started(str(tmp_path / "tables"))
    with pytest.raises(AssertionError, match="the batch was run"):
        current.handle_batch(cast("Any", _Batch()), 0)
