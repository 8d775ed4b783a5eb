"""The dead-letter table: written after the acks, once per notification, and compacted."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.jobs.track import dead_letters
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource


def test_acks_do_not_wait_for_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    """A writer that sends garbage must not hold back the others' acks; a rerun then writes what is missing."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)], ["no notification"])
    (tmp_path / "dead_letters").write_text("a file where the table should be")
    with pytest.raises(SinkError, match="dead letters cannot be written to"):
        job.run(spark)
    assert job.acks() == [(source.name, 0, 2000)]
    (tmp_path / "dead_letters").unlink()
    job.run(spark)
    letters = table_rows(DeltaTable(str(tmp_path / "dead_letters")), ["batch_id", "value"]).to_pylist()
    assert letters == [{"batch_id": 0, "value": "no notification"}]
    assert job.acks() == [(source.name, 0, 2000)]


def test_dead_letters_of_short_runs_are_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that sends garbage for months leaves rows, and not a file for each batch."""
    monkeypatch.setattr(dead_letters, "COMPACT_EVERY", 3)
    job = JobFolder(tmp_path)
    for number in range(4):
        job.write([], [f"no notification {number}"])
        job.run(spark)
    table = DeltaTable(str(tmp_path / "dead_letters"))
    values = table_rows(table, ["value"])["value"].to_pylist()
    assert sorted(values) == [f"no notification {number}" for number in range(4)]
    assert len(table.file_uris()) == 2
    assert {"OPTIMIZE", "VACUUM END"} < {commit["operation"] for commit in table.history()}
    assert table.metadata().configuration == dead_letters._RETENTION
