"""The driver is killed with SIGKILL, together with its JVM and its workers, and a restarted job gives the same acks."""

import random
import shutil
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from tests.support.job_folder import JobFolder
from tests.support.killed_job import POINTS
from tests.support.processes import run_to_end
from tests.support.sample_source import SampleSource
from tests.support.seeds import every

_BATCHES = 4
_SHAPES = [f"shape-{number}" for number in range(9)]


def _write_load(job: JobFolder) -> int:
    """Write a load with a shape pending after every batch but the last; return the last commit."""
    rng = random.Random(7)  # noqa: S311  a reproducible test history
    source = SampleSource()
    unflushed: list[FlushNotification] = []
    lsn = 2000
    for batch in range(_BATCHES):
        events: list[FragmentEvent | FlushNotification] = []
        for _ in range(12):
            lsn += rng.randrange(40, 400)
            shape_ids = rng.sample(_SHAPES, rng.randrange(4))
            last_op = rng.randrange(10) * 2
            events.append(source.transaction(lsn, *shape_ids, op=last_op))
            unflushed += [source.flushed(shape_id, lsn, last_op) for shape_id in shape_ids]
        rng.shuffle(unflushed)
        flush_count = len(unflushed) if batch == _BATCHES - 1 else len(unflushed) * 2 // 3
        events += unflushed[:flush_count]
        del unflushed[:flush_count]
        job.write(events)
    return lsn


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """The load, and the acks of a job that was never killed."""
    job = JobFolder(tmp_path_factory.mktemp("undisturbed"))
    last_commit = _write_load(job)
    job.run(spark)
    assert job.acks()[-1][2] == last_commit
    assert len(job.acks()) == _BATCHES
    return job


def _run_until_killed(job: JobFolder, point: str, passes: int) -> None:
    command = [sys.executable, "-m", "tests.support.killed_job", point, str(passes), "--config", str(job.config_file())]
    done = run_to_end(command, start_new_session=True, timeout=300)
    assert done.returncode == -9, done.stderr


def test_killed_drivers_continue_from_their_checkpoint(
    spark: SparkSession, undisturbed: JobFolder, tmp_path: Path
) -> None:
    """One job is killed at every kill point: a rerun gives the same ack in one row, later batches are unaffected."""
    job = undisturbed.twin(tmp_path / "job")
    # Each start appends the acks again, and reruns the batch in which the one before was killed.
    for point, passes, committed, rows in zip(POINTS, [1, 1, 2], [1, 1, 2], [1, 1, 3], strict=True):
        _run_until_killed(job, point, passes)
        assert job.acks() == undisturbed.acks()[:rows], point
        assert len(_committed_batches(job)) == committed, point
    job.run(spark)
    assert job.acks() == undisturbed.acks()


def _begun(spark: SparkSession, undisturbed: JobFolder, root: Path, batches: int) -> JobFolder:
    """A job that has done the first batches only; the rest is there to be read."""
    job = JobFolder(root)
    _publish(undisturbed, job, slice(batches))
    job.run(spark)
    assert job.acks() == undisturbed.acks()[:batches]
    _publish(undisturbed, job, slice(batches, None))
    return job


def _publish(undisturbed: JobFolder, job: JobFolder, part: slice) -> None:
    for stream in ("fragments", "flushes"):
        for file in sorted((undisturbed.root / stream).iterdir())[part]:
            shutil.copy2(file, job.root / stream)


@every(2, 0)
def test_checkpoint_restored_from_an_old_backup_acks_nothing_twice(
    spark: SparkSession, undisturbed: JobFolder, tmp_path: Path
) -> None:
    """A job with a checkpoint older than the ack table reads acknowledged events again, but appends no row for them."""
    job = _begun(spark, undisturbed, tmp_path / "job", 2)
    backup = tmp_path / "backup"
    shutil.copytree(job.root / "checkpoint", backup)
    job.run(spark)
    assert job.acks() == undisturbed.acks()
    shutil.rmtree(job.root / "checkpoint")
    backup.rename(job.root / "checkpoint")
    job.run(spark)
    assert job.acks() == undisturbed.acks()


@every(2, 1)
def test_lost_checkpoint_costs_a_resend_and_nothing_else(
    spark: SparkSession, undisturbed: JobFolder, tmp_path: Path
) -> None:
    """With only the ack table, the job reads everything again and continues after the table's last ack."""
    job = _begun(spark, undisturbed, tmp_path / "job", 2)
    shutil.rmtree(job.root / "checkpoint")
    job.run(spark)
    assert [ack_lsn for *_, ack_lsn in job.acks()] == [ack_lsn for *_, ack_lsn in undisturbed.acks()]


def _committed_batches(job: JobFolder) -> list[str]:
    return sorted(path.name for path in (job.root / "checkpoint" / "commits").iterdir() if path.name.isdigit())
