"""The files that a batch's rows are written to, before they are appended to the shape log."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from flushtracker.delta.log.files import LogFiles
from flushtracker.delta.log.table import create_shape_log
from flushtracker.errors import SinkError
from flushtracker.spark import row_files
from flushtracker.spark.hadoop_files import HadoopFiles
from flushtracker.spark.row_files import RowFiles

_COLUMNS = "'7301/1/shapes' AS source, 'users' AS shape_id, id AS tx_offset, 0L AS op_offset"

_FOLDER = f"append-{7:020}"


def _rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr(*_COLUMNS.split(", "))


def test_rows_of_a_batch_become_files_beside_the_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder of a batch is left; on a disk there would be one more with each batch."""
    monkeypatch.setitem(row_files._OPTIONS, "maxRecordsPerFile", "10")
    log = str(tmp_path / "log")
    files = RowFiles("shape log", log, LogFiles(create_shape_log(log), {}).written)
    written = files.write(_rows(spark, 25), _FOLDER, lambda: 25)
    assert [sum(file.rows for file in written), len(written)] == [25, 3]
    assert {file.action.path for file in written} == {path.name for path in Path(log).glob("*.parquet")}
    assert {path.name for path in Path(log).iterdir() if path.is_dir()} == {"_delta_log"}


def test_rows_that_are_not_there_are_not_appended(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if somebody cleaned the folder up at that moment; the shapes would be told that they are durable."""
    log = str(tmp_path / "log")
    files = RowFiles("shape log", log, LogFiles(create_shape_log(log), {}).written)
    monkeypatch.setattr(HadoopFiles, "names", lambda *_: [])
    with pytest.raises(SinkError, match=r"0 of 25 rows of append-0+7 are there; another program removes its files"):
        files.write(_rows(spark, 25), _FOLDER, lambda: 25)


def test_storage_that_fails_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A file is where the batch's folder belongs."""
    log = str(tmp_path / "log")
    files = RowFiles("shape log", log, LogFiles(create_shape_log(log), {}).written)
    (tmp_path / "log" / _FOLDER).write_text("")
    with pytest.raises(SinkError, match=r"shape log .*/log cannot be written: .*"):
        files.write(_rows(spark, 5), _FOLDER, lambda: 5)
