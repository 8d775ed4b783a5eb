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

import random
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.config.job_config import load_config
from flushtracker.config.write_config import load_write_config
from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.table import create_shape_log, row_files
from flushtracker.delta.storage import table_rows
from flushtracker.errors import FlushtrackerError, SinkError, StateError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.jobs.track.driver import REMEDIES, AckDriver
from flushtracker.jobs.track.query import track_flushes
from flushtracker.jobs.write.query import write_shapes
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.spark.checkpoint_origin import CheckpointOrigin
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan
from flushtracker.spark.row_files import write_rows
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.faulty_proxy import RESET, Fault, FaultyProxy
from tests.support.job_folder import JobFolder
from tests.support.object_store import store_options
from tests.support.racing_commits import as_log_rows, snapshot_frame
from tests.support.s3_session import on_store
from tests.support.sample_source import SampleSource
from tests.support.shape_transactions import Transactions
from tests.support.write_folder import WriteFolder

_MANY: Final = 100
_GARBAGE: Final = ["no notification"]
_IDENTITY: Final = {"format": "kafka", "fragments": "f (id)"}
_PLAN: Final = RecoveryPlan({0: PartitionPlan(100, {"7301/1/shapes": 40})})


@pytest.fixture
def proxy(running_proxy: FaultyProxy) -> FaultyProxy:
    """Without faults that a failed test has left."""
    running_proxy.left()
    return running_proxy


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """Three batches, and the acks that a job on a disk gives."""
    job, source = JobFolder(tmp_path_factory.mktemp("undisturbed")), SampleSource()
    for lsn in (2000, 3000, 4000):
        events: list[FragmentEvent | FlushNotification] = [source.transaction(lsn, "a", "b")]
        job.write([*events, source.flushed("a", lsn), source.flushed("b", lsn - 500)], _GARBAGE if lsn == 3000 else [])
    job.write([source.flushed("b", 4000)])
    job.run(spark)
    assert len(job.acks()) == 4
    assert job.acks()[-1][2] == 4000
    return job


class Tracked:
    """The undisturbed job's streams, with everything else on the store below ``name``."""

    def __init__(self, undisturbed: JobFolder, tmp_path: Path, port: int, name: str) -> None:
        self.options = store_options(port)
        self.file = on_store(undisturbed.twin(tmp_path / "job").config_file(), port, name)
        self._uri = f"s3://bucket/{name}"

    def run(self, spark: SparkSession) -> None:
        track_flushes(spark, load_config(self.file), Event())

    def acks(self) -> list[tuple[str, int, int]]:
        rows = table_rows(DeltaTable(f"{self._uri}/acks", storage_options=self.options), ["source, batch_id, ack_lsn"])
        return sorted((row["source"], row["batch_id"], row["ack_lsn"]) for row in rows.to_pylist())

    def dead_letters(self) -> list[str]:
        table = DeltaTable(f"{self._uri}/dead_letters", storage_options=self.options)
        values: list[str] = table_rows(table, ["value"])["value"].to_pylist()
        return values


def _kill(module: str, point: str, passes: int, file: Path) -> None:
    command = [sys.executable, "-m", f"tests.support.{module}", point, str(passes), "--config", str(file)]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == -9, done.stderr


def test_killed_driver_continues_on_a_store(
    spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Its acks and dead letters are those of a job on a disk that was never killed."""
    job = Tracked(undisturbed, tmp_path, proxy.port, "killed")
    _kill("killed_job", "between Delta commit and batch commit", 1, job.file)
    assert job.acks() == undisturbed.acks()[:2]
    job.run(spark)
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == _GARBAGE


@pytest.mark.long
def test_killed_writer_continues_on_a_store(spark: SparkSession, proxy: FaultyProxy, tmp_path: Path) -> None:
    """Each change is in the log once; nor does a lost answer to a table's creation end the start."""
    job, shape = WriteFolder(tmp_path / "job"), Transactions("a", random.Random(1))  # noqa: S311  a test
    shape.grow(12)
    events = list(shape.events(list(shape.items)))
    for start in range(0, len(events), 6):
        job.write(events[start : start + 6])
    file = on_store(job.config_file(), proxy.port, "writer")
    proxy.add(Fault(r"PUT .*writer(/|%2F)log(_shapes)?/_delta_log/0{20}\.json", RESET, takes_effect=True, times=2))
    _kill("killed_writer", "between append and notification", 1, file)
    assert proxy.left() == 0
    write_shapes(spark, load_write_config(file), Event())
    table = DeltaTable("s3://bucket/writer/log", storage_options=store_options(proxy.port))
    rows = table_rows(table, ["tx_offset", "op_offset", "operation"]).to_pylist()
    found = sorted((row["tx_offset"], row["op_offset"], row["operation"]) for row in rows)
    assert found == shape.expected_rows()
    said = [offset for file in job.notified() for offset in file.values()]
    assert max(said).tx_offset == max(shape.items)


@pytest.mark.long
def test_stale_driver_on_a_store_adds_nothing_to_what_its_successor_has_acknowledged(
    spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second job does everything, on the same checkpoint, while the first is in the middle of a batch."""
    job, handle = Tracked(undisturbed, tmp_path, proxy.port, "stale"), AckDriver.handle_batch
    command = [sys.executable, "-m", "flushtracker", "track", "--config", str(job.file)]

    def succeed_first(driver: AckDriver, *arguments: Any) -> None:
        monkeypatch.undo()
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        handle(driver, *arguments)

    monkeypatch.setattr(AckDriver, "handle_batch", succeed_first)
    with pytest.raises(SinkError, match=r"fenced: another driver \(process \d+ on "):
        job.run(spark)
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == _GARBAGE
    job.run(spark)
    assert job.acks() == undisturbed.acks()


def test_faults_of_a_store_change_nothing(
    spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """Errors, throttling, resets and lost answers, at each kind of request; the job neither stops nor differs."""
    job = Tracked(undisturbed, tmp_path, proxy.port, "faults")
    tables, checkpoint = "faults(/|%2F)(acks|dead_letters)", "faults(/|%2F)checkpoint"
    proxy.add(
        Fault(rf"PUT .*{tables}/_delta_log/0{{20}}\.json", RESET, takes_effect=True, times=2),
        Fault(rf"PUT .*{tables}/_delta_log/\d{{19}}[1-9]\.json", 500, takes_effect=True, times=2),
        Fault(rf"PUT .*{tables}/_delta_log/\d{{19}}[1-9]\.json", RESET, takes_effect=True),
        Fault(rf"PUT .*{tables}/part-", RESET),
        Fault(rf"PUT .*{tables}/part-", 503, takes_effect=True, times=2),
        Fault(rf"GET .*{tables}", 503, times=4),
        Fault(rf"GET .*list-type.*{tables}", RESET),
        Fault(rf"PUT .*{checkpoint}", 503, times=5),
        Fault(rf"PUT .*{checkpoint}", 500, takes_effect=True, times=3),
        Fault(rf"PUT .*{checkpoint}/commits", RESET, takes_effect=True),
        Fault(rf"PUT .*{checkpoint}/state", RESET, times=2),
        Fault(rf"(GET|HEAD) .*{checkpoint}", 503, times=5),
        Fault(rf"HEAD .*{checkpoint}", delay_s=1.0),
        Fault(r"DELETE .*checkpoint", 500, takes_effect=True, times=2),
    )
    job.run(spark)
    assert proxy.left() == 0
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == _GARBAGE


@pytest.mark.long
@pytest.mark.parametrize("status", [403, 400], ids=["RequestTimeTooSkewed", "ExpiredToken"])
def test_refused_signature_ends_the_job_with_the_stores_reason(
    spark: SparkSession, undisturbed: JobFolder, proxy: FaultyProxy, tmp_path: Path, status: int
) -> None:
    """A clock that is wrong, and keys that have expired, at the table and at the checkpoint; then it continues."""
    name = f"refused{status}"
    job = Tracked(undisturbed, tmp_path, proxy.port, name)
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
