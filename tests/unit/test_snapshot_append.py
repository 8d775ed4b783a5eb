"""An attempt's job: what it reports when it ends otherwise than by its rows, and how long it may take."""

import logging
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from flushtracker.errors import ConfigError
from flushtracker.jobs.snapshot import attempt
from flushtracker.jobs.snapshot.append_job import AppendJob
from flushtracker.jobs.snapshot.read_plan import ReadPlan
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.wal.mvcc_snapshot import MvccSnapshot


class LostJvm:
    """A session whose JVM dies when the job begins."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(accumulator=lambda _: SimpleNamespace(value=0), setJobGroup=self._fail)

    def _fail(self, *_: object, **__: object) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")


class EndlessJob:
    """A job that ends only when it is canceled."""

    def __init__(self) -> None:
        self.is_canceled = False

    def start(self) -> None:
        """It has begun."""

    def wait(self, _: float) -> bool:
        return self.is_canceled

    def cancel(self) -> None:
        self.is_canceled = True


def test_job_whose_jvm_is_lost_has_appended_nothing() -> None:
    """Its error is no Java exception; without it, the snapshot would be reported as taken."""
    spark: Any = LostJvm()
    snapshot = ShapeSnapshot(1, MvccSnapshot.parse("1:1:"), 1, 1)
    nothing: Any = None
    job = AppendJob(spark, nothing, nothing, ReadPlan({}, "1", 1, (), (), ()), snapshot, 1)
    job.start()
    assert job.wait(10)
    with pytest.raises(Py4JNetworkError):
        job.require_done()


def test_attempt_ends_before_a_vacuum_could_delete_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are not part of the log yet are deleted when they are older than its retention."""
    monkeypatch.setattr(attempt, "_MOST_S", -1.0)
    job: Any = EndlessJob()
    nothing: Any = SimpleNamespace(poll=logging.debug)
    with pytest.raises(ConfigError, match="delete its first files"):
        attempt._run(job, nothing, nothing, Event())
    assert job.is_canceled
