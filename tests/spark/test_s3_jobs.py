"""``track`` and ``write`` with everything on a real server with the API of S3, behind a proxy that fails as told.

``tests/integration/test_s3_tables.py`` has a list of all paths, and what does without Spark. Here:

=====================  ============================================================================================
checkpoints            continued after a kill, and after a second driver; with faults of every kind; renamed by
                       ``--recover``, and interrupted
acks, dead letters     the same rows as on a disk
shape log, registry    the same rows as on a disk
rows from before       written by executors
=====================  ============================================================================================
"""

from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.delta.storage import table_rows
from flushtracker.errors import FlushtrackerError, StateError
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.spark.row_writer import write_rows
from flushtracker.shape_log.table.files import LogFiles
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.tracking.job.driver import REMEDIES
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.faulty_proxy import RESET, Fault, FaultyProxy
from tests.support.job_folder import JobFolder
from tests.support.object_store import store_options
from tests.support.racing_commits import as_log_rows, snapshot_frame
from tests.support.s3_session import s3_store
from tests.support.seeds import every, in_turn
from tests.support.store_faults import store_faults
from tests.support.store_jobs import (
    GARBAGE,
    Tracked,
    Written,
    kill,
    killed_driver_continues,
    stale_driver_adds_nothing,
    undisturbed_job,
)

_MANY: Final = 100
_IDENTITY: Final = {"format": "kafka", "fragments": "f (id)"}
_PLAN: Final = RecoveryPlan({0: PartitionPlan(100, {"7301/1/shapes": 40})})


@pytest.fixture
def proxy(running_proxy: FaultyProxy) -> FaultyProxy:
    """Without faults that a failed test has left."""
    running_proxy.left()
    return running_proxy


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    return undisturbed_job(spark, tmp_path_factory.mktemp("undisturbed"))


@every(3, 2)
@pytest.mark.parametrize("story", in_turn(["killed", "stale"]))
def test_another_driver_continues_on_a_store(
    spark: SparkSession,
    undisturbed: JobFolder,
    proxy: FaultyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    story: str,
) -> None:
    """After a kill, and beside a stale driver in mid-batch, its acks and dead letters are those of a job on a disk."""
    job = Tracked(undisturbed, tmp_path, s3_store(proxy.port), story)
    if story == "killed":
        killed_driver_continues(spark, undisturbed, job)
    else:
        stale_driver_adds_nothing(spark, undisturbed, job, monkeypatch)


@every(3, 1)
def test_faults_of_a_store_change_nothing(
    spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Errors, throttling, resets and lost answers, at each kind of request; the job neither stops nor differs."""
    job = Tracked(undisturbed, tmp_path, s3_store(proxy.port), "faults")
    proxy.add(*store_faults("faults", "acks|dead_letters"))
    job.run(spark)
    assert proxy.left() == 0
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == GARBAGE


@every(3, 0)
@pytest.mark.parametrize("is_killed", in_turn([True, False]))
def test_each_change_is_in_a_log_on_a_store_once(
    spark: SparkSession,
    proxy: FaultyProxy,
    tmp_path: Path,
    is_killed: bool,  # noqa: FBT001  a parameter
) -> None:
    """And all are notified: after a kill, and with the same faults. A lost answer to a creation ends no start."""
    job = Written(tmp_path, s3_store(proxy.port), f"writer{is_killed}")
    if is_killed:
        log = r"writerTrue(/|%2F)log(_shapes)?"
        proxy.add(Fault(rf"PUT .*{log}/_delta_log/0{{20}}\.json", RESET, takes_effect=True, times=2))
        kill("killed_writer", "between append and notification", 1, job.file)
    else:
        proxy.add(*store_faults("writerFalse", "log|log_shapes"))
        job.run(spark)
    assert proxy.left() == 0
    if is_killed:
        job.run(spark)
    job.require_everything()


@pytest.mark.parametrize("status", [pytest.param(403, marks=every(4, 1)), pytest.param(400, marks=every(4, 3))])
def test_refused_signature_ends_the_job_with_the_stores_reason(
    spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path, status: int
) -> None:
    """A clock that is wrong (403), or keys that have expired (400), at table and checkpoint; then it continues."""
    name = f"refused{status}"
    job = Tracked(undisturbed, tmp_path, s3_store(proxy.port), name)
    for request in (rf"PUT .*{name}/acks/_delta_log/\d{{19}}3\.json", rf"PUT .*{name}/checkpoint/offsets"):
        # Spark's client tries again, with the time that the store has.
        proxy.add(Fault(request, status, times=_MANY))
        with pytest.raises(FlushtrackerError, match="told to fail"):
            job.run(spark)
        assert proxy.left() < _MANY
    job.run(spark)
    # A batch that was not planned to the end may be joined with the next.
    ack_lsns = [ack_lsn for *_, ack_lsn in job.acks()]
    assert ack_lsns == sorted({*ack_lsns})
    assert ack_lsns[-1] == undisturbed.acks()[-1][2]


@pytest.mark.usefixtures("proxy")
def test_interrupted_recovery_is_neither_continued_nor_lost(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store renames one object after the other. What is left of the old checkpoint must not be continued."""
    checkpoint = "s3a://bucket/recovered/checkpoint"
    origin = CheckpointOrigin(spark, checkpoint, REMEDIES)
    origin.open(_IDENTITY)
    for number in range(4):
        origin._files.write(f"offsets/{number}", b"v1")

    def move_in_part(target: str) -> bool:
        system, path = origin._files._system, origin._files._path
        system.rename(path("offsets/0"), path(f"../{target.rpartition('/')[2]}"))
        raise KeyboardInterrupt

    monkeypatch.setattr(origin._files, "move_folder", move_in_part)
    with pytest.raises(KeyboardInterrupt):
        origin.replace(_IDENTITY, _PLAN)
    again = CheckpointOrigin(spark, checkpoint, REMEDIES)
    with pytest.raises(StateError, match=r"has offsets, but no flushtracker\.json, so it .* is incomplete"):
        again.open(_IDENTITY)
    again.replace(_IDENTITY, _PLAN)
    assert CheckpointOrigin(spark, checkpoint, REMEDIES).open(_IDENTITY) == _PLAN
    # What was left is kept, too.
    files = HadoopFiles(spark, "s3a://bucket/recovered")
    (left,) = filter(None, (files.names(f"{name}/offsets") for name in files.names()))
    assert {*left} == {"1", "2", "3"}


def test_executors_write_rows_from_before_to_a_store(spark: SparkSession, proxy: FaultyProxy) -> None:
    """The files of a snapshot, which the driver commits."""
    options = store_options(proxy.port)
    table = create_shape_log("s3a://bucket/snapshots", options)
    proxy.add(Fault(r"PUT .*snapshots/.*parquet", 503), Fault(r"PUT .*snapshots/.*parquet", RESET, takes_effect=True))
    for number in range(2):
        written = write_rows(snapshot_frame(spark, number), row_files(table, options), as_log_rows)
        snapshot = ShapeSnapshot(1, MvccSnapshot(1, 1), 0, 1)
        LogFiles(table, options).append_snapshot(written, {("7/1/s", "snapshot"): snapshot})
    assert proxy.left() == 0
    found = table_rows(DeltaTable("s3://bucket/snapshots", storage_options=options), ["tx_offset"], "operation IS NULL")
    assert sorted(found["tx_offset"].to_pylist()) == [-2, -1]
