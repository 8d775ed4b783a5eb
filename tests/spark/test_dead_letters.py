"""The dead-letter table: tried at the start, written after the acks, once per notification, and compacted."""

import os
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from flushtracker.config.secret_options import SecretOptions
from flushtracker.delta import compaction, dead_letter_table
from flushtracker.delta.storage import table_rows
from flushtracker.errors import SinkError
from flushtracker.tracking.job.dead_letters import DeadLetters
from flushtracker.tracking.job.query import track_flushes
from tests.support.job_folder import JobFolder
from tests.support.sample_source import SampleSource

_NO_STORE: Final = SecretOptions(
    {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "x", "max_retries": "0"}
    | {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "hunter2hunter2"}
)
"""Nothing listens on the port."""


def _values(folder: Path) -> list[str]:
    return sorted(table_rows(DeltaTable(str(folder / "dead_letters")), ["value"])["value"].to_pylist())


def _break_after_start(monkeypatch: pytest.MonkeyPatch, table: Path) -> None:
    """Put a file where the table should be, as soon as the start has tried it."""
    tried = DeadLetters.require_writable

    def require_writable(letters: DeadLetters) -> None:
        tried(letters)
        table.write_text("in the way")

    monkeypatch.setattr(DeadLetters, "require_writable", require_writable)


def test_acks_do_not_wait_for_dead_letters(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer that sends garbage must not stop the job while the table cannot be written; what comes later is kept."""
    job = JobFolder(tmp_path)
    source = SampleSource()
    job.write([source.transaction(2000)], ["no notification", "neither"])
    job.write([source.transaction(3000)])
    table = tmp_path / "dead_letters"
    with monkeypatch.context() as patched:
        _break_after_start(patched, table)
        job.run(spark)
    assert job.acks() == [(source.name, 0, 2000), (source.name, 1, 3000)]
    (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    place = f"file:{tmp_path}/flushes/000000.jsonl"
    assert error.startswith(
        f"flush notifications refused and not stored batch_id=0 count=2 places={place} dead_letters={table} reason="
    )
    table.unlink()
    job.write([source.transaction(4000)], ["again none"])
    job.run(spark)
    assert job.acks()[-1] == (source.name, 2, 4000)
    assert _values(tmp_path) == ["again none"]


def test_next_dead_letters_are_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart: the storage is back when the second malformed flush arrives."""
    job = JobFolder(tmp_path)
    job.write([], ["lost"])
    job.write([], ["stored"])
    table = tmp_path / "dead_letters"
    _break_after_start(monkeypatch, table)
    append = DeadLetters.append

    def append_then_repair(letters: DeadLetters, *arguments: Any) -> None:
        append(letters, *arguments)
        if table.is_file():
            table.unlink()

    monkeypatch.setattr(DeadLetters, "append", append_then_repair)
    job.run(spark)
    assert _values(tmp_path) == ["stored"]


@pytest.mark.parametrize("path", ["s3a://bucket/dead_letters", "{}/file/dead_letters"])
def test_start_names_a_dead_letter_table_that_cannot_be_written(spark: SparkSession, tmp_path: Path, path: str) -> None:
    """As a store that does not answer: before a query has run, and not when a malformed flush comes, months later."""
    (tmp_path / "file").write_text("in the way")
    job = JobFolder(tmp_path)
    job.write([SampleSource().transaction(2000)])
    path = path.format(tmp_path)
    config = job.config()
    config = replace(config, sink=replace(config.sink, dead_letters=path, storage_options=_NO_STORE))
    with pytest.raises(SinkError, match=rf"^dead letters: {path} cannot be written: .*; name a folder that can"):
        track_flushes(spark, config, Event())
    assert job.acks() == []
    assert not (tmp_path / "checkpoint").exists()


def test_a_flood_of_malformed_notifications_leaves_a_sample(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A thousand of a batch, and the beginning of each: the driver holds them. All are counted."""
    job = JobFolder(tmp_path)
    job.write([SampleSource().transaction(2000)], [f"{number} {'x' * 20_000}" for number in range(1_200)])
    job.run(spark)
    assert "flush notifications refused batch_id=0 count=1200 " in caplog.text
    values = _values(tmp_path)
    assert len(values) == 1_000
    assert {len(value) for value in values} == {10_000 + len("… (20,004 bytes)")}
    assert len(job.acks()) == 1


def test_start_refuses_a_folder_with_files_of_others(spark: SparkSession, tmp_path: Path) -> None:
    """The table's upkeep would delete them. The folder is as before; so is a Delta table that is another one's."""
    job = JobFolder(tmp_path)
    folder = tmp_path / "dead_letters"
    folder.mkdir()
    (folder / "report.csv").write_text("somebody's")
    with pytest.raises(SinkError) as caught:
        job.run(spark)
    assert str(caught.value) == (
        f"dead-letter table {folder} cannot be created: the folder already has report.csv; name another storage"
    )
    assert [path.name for path in folder.iterdir()] == ["report.csv"]
    (folder / "report.csv").unlink()
    write_deltalake(str(folder), pa.table({"place": ["x"], "n": [1]}))
    with pytest.raises(SinkError, match="columns batch_id, reason, value, written_at, so it is not the dead-letter"):
        job.run(spark)


def test_files_of_others_survive_the_upkeep_of_dead_letters(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They came after the table; the log names them once, and small files are merged all the same."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 1)
    job = JobFolder(tmp_path)
    (tmp_path / "dead_letters" / "lost+found").mkdir(parents=True)
    job.write([], ["first"])
    job.run(spark)
    report = tmp_path / "dead_letters" / "report.csv"
    report.write_text("somebody's")
    os.utime(report, (1_700_000_000,) * 2)
    for number in range(2):
        job.write([], [f"later {number}"])
    job.run(spark)
    assert report.exists()
    assert _values(tmp_path) == ["first", "later 0", "later 1"]
    assert len(DeltaTable(str(tmp_path / "dead_letters")).file_uris()) == 1
    assert caplog.text.count("the folder of the dead-letter table has files that are not the table's") == 1
    assert "count=1 files=report.csv" in caplog.text


def test_dead_letters_of_short_runs_are_compacted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that sends garbage for months leaves rows, and not a file for each batch."""
    monkeypatch.setattr(compaction, "COMPACT_EVERY", 3)
    job = JobFolder(tmp_path)
    for number in range(3):
        job.write([], [f"no notification {number}"])
        job.run(spark)
    table = DeltaTable(str(tmp_path / "dead_letters"))
    values = table_rows(table, ["value"])["value"].to_pylist()
    assert sorted(values) == [f"no notification {number}" for number in range(3)]
    assert len(table.file_uris()) == 1
    assert table.metadata().configuration == dead_letter_table.CONFIGURATION
