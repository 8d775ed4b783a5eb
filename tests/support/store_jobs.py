"""Jobs with everything but their streams on an object store, and what must be so on each of them.

The stories take a Spark session that finds the store; ``undisturbed`` is a job on a disk that nothing has happened to.
"""

import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.config.job_config import load_config
from flushtracker.config.write_config import load_write_config
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.shape_log.write.query import write_shapes
from flushtracker.tracking.job.driver import AckDriver
from flushtracker.tracking.job.query import track_flushes
from tests.support.config_file import change_config
from tests.support.job_folder import JobFolder
from tests.support.processes import run_to_end
from tests.support.sample_source import SampleSource
from tests.support.shape_transactions import Transactions
from tests.support.write_folder import WriteFolder

GARBAGE: Final = ["no notification"]


@dataclass(frozen=True)
class Store:
    """A place on an object store, as Spark and deltalake name it, and how each of them finds it.

    ``stores``: the stores of ``storage``; ``further``: its ``options``; ``spark``: settings of the jobs' sessions.
    """

    place: str
    stores: Mapping[str, Mapping[str, str]]
    options: Mapping[str, str]
    further: Mapping[str, str] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)

    def take(self, config_file: Path, name: str) -> Path:
        """Put tables and checkpoint of a job folder's configuration on the store, below ``name``; returns the file."""
        place = f"{self.place}/{name}"
        program = "track" if "track" in yaml.safe_load(config_file.read_text()) else "write"
        changes = {
            "storage": {"path": place, **self.stores, "options": dict(self.further)},
            "spark": dict(self.spark),
            program: {"checkpoint": f"{place}/checkpoint"},
        }
        return change_config(config_file, changes)

    def rows(self, table: str, columns: list[str]) -> list[dict[str, Any]]:
        """The rows of a table there, in no order."""
        found = DeltaTable(f"{self.place}/{table}", storage_options=dict(self.options))
        rows: list[dict[str, Any]] = table_rows(found, columns).to_pylist()
        return rows


class Tracked:
    """A job with the streams of ``undisturbed``, and everything else on the store below ``name``."""

    def __init__(self, undisturbed: JobFolder, tmp_path: Path, store: Store, name: str) -> None:
        self.file = store.take(undisturbed.twin(tmp_path / "job").config_file(), name)
        self._store, self._name = store, name

    def run(self, spark: SparkSession) -> None:
        track_flushes(spark, load_config(self.file), Event())

    def acks(self) -> list[tuple[str, int, int]]:
        rows = self._store.rows(f"{self._name}/acks", ["source, batch_id, ack_lsn"])
        return sorted((row["source"], row["batch_id"], row["ack_lsn"]) for row in rows)

    def dead_letters(self) -> list[str]:
        return [row["value"] for row in self._store.rows(f"{self._name}/dead_letters", ["value"])]


def undisturbed_job(spark: SparkSession, root: Path) -> JobFolder:
    """Three batches, and the acks that a job on a disk gives."""
    job, source = JobFolder(root), SampleSource()
    for lsn in (2000, 3000, 4000):
        events: list[FragmentEvent | FlushNotification] = [source.transaction(lsn, "a", "b")]
        job.write([*events, source.flushed("a", lsn), source.flushed("b", lsn - 500)], GARBAGE if lsn == 3000 else [])
    job.write([source.flushed("b", 4000)])
    job.run(spark)
    assert len(job.acks()) == 4
    assert job.acks()[-1][2] == 4000
    return job


def kill(module: str, point: str, passes: int, file: Path) -> None:
    """Run a job of ``tests.support`` that kills itself."""
    command = [sys.executable, "-m", f"tests.support.{module}", point, str(passes), "--config", str(file)]
    done = run_to_end(command, start_new_session=True, timeout=600)
    assert done.returncode == -9, done.stderr


def killed_driver_continues(spark: SparkSession, undisturbed: JobFolder, job: Tracked) -> None:
    """Its acks and dead letters are those of the undisturbed job."""
    kill("killed_job", "between Delta commit and batch commit", 1, job.file)
    assert job.acks() == undisturbed.acks()[:2]
    job.run(spark)
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == GARBAGE


class Written:
    """A writers' job of twelve transactions of a shape, whose log and checkpoint are on the store below ``name``."""

    def __init__(self, tmp_path: Path, store: Store, name: str) -> None:
        self._job, self._shape = WriteFolder(tmp_path / "job"), Transactions("a", random.Random(1))  # noqa: S311  a test
        self._shape.grow(12)
        events = list(self._shape.events(list(self._shape.items)))
        for start in range(0, len(events), 6):
            self._job.write(events[start : start + 6])
        self.file = store.take(self._job.config_file(), name)
        self._store, self._name = store, name

    def run(self, spark: SparkSession) -> None:
        write_shapes(spark, load_write_config(self.file), Event())

    def require_everything(self) -> None:
        """Each change is in the log once, and all of them were notified."""
        rows = self._store.rows(f"{self._name}/log", ["tx_offset", "op_offset", "operation"])
        found = sorted((row["tx_offset"], row["op_offset"], row["operation"]) for row in rows)
        assert found == self._shape.expected_rows()
        said = [offset for file in self._job.notified() for offset in file.values()]
        assert max(said).tx_offset == max(self._shape.items)


def stale_driver_adds_nothing(
    spark: SparkSession, undisturbed: JobFolder, job: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second job does everything, on the same checkpoint, while the first is in the middle of a batch."""
    handle = AckDriver.handle_batch
    command = [sys.executable, "-m", "flushtracker", "track", "--config", str(job.file)]

    def succeed_first(driver: AckDriver, *arguments: Any) -> None:
        monkeypatch.undo()
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        handle(driver, *arguments)

    monkeypatch.setattr(AckDriver, "handle_batch", succeed_first)
    with pytest.raises(SinkError, match=r"fenced: another driver \(process \d+ on "):
        job.run(spark)
    assert job.acks() == undisturbed.acks()
    assert job.dead_letters() == GARBAGE
    job.run(spark)
    assert job.acks() == undisturbed.acks()
