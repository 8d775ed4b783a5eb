"""Rows of a DataFrame that executors write as files of a table."""

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from flushtracker.errors import SinkError
from flushtracker.shape_log.spark.row_writer import write_rows
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.spark.workers import task_attempts

_COLUMNS = ("'7301/1/shapes' AS source", "'users' AS shape_id", "id AS tx_offset", "0L AS op_offset")


def _rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 3).selectExpr(*_COLUMNS)


def _block(batch: pa.RecordBatch) -> pa.Table:
    rest = [pa.nulls(len(batch), field.type) for field in list(SCHEMA)[4:]]
    return pa.table([*batch.columns, *rest], SCHEMA)


def test_each_task_writes_its_rows_beside_the_table(spark: SparkSession, tmp_path: Path) -> None:
    """No folder is left; on a disk there would be one more with each batch. A task without rows writes nothing."""
    table = create_shape_log(str(tmp_path / "log"))
    assert [file.rows for file in write_rows(_rows(spark, 2), row_files(table, {}), _block)] == [1, 1]
    written = write_rows(_rows(spark, 25), row_files(table, {}), _block)
    assert sorted(file.rows for file in written) == [8, 8, 9]
    assert {file.action.path for file in written} < {path.name for path in (tmp_path / "log").glob("*.parquet")}
    assert {path.name for path in (tmp_path / "log").iterdir() if path.is_dir()} == {"_delta_log"}


def test_worker_that_is_killed_leaves_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """Its files have names that no commit has, so the next attempt has each row once."""
    table = create_shape_log(str(tmp_path / "log"))
    rows = _rows(spark, 200_000).repartition(1)

    def dies(batch: pa.RecordBatch) -> pa.Table:
        if list((tmp_path / "log").glob("*.parquet")):
            os.kill(os.getpid(), signal.SIGKILL)
        return _block(batch)

    with pytest.raises(SinkError, match=r"^shape log \S+ cannot be written: .*"):
        write_rows(rows, row_files(table, {}), dies)
    (left,) = (tmp_path / "log").glob("*.parquet")
    written = write_rows(rows, row_files(table, {}), _block)
    assert sum(file.rows for file in written) == 200_000
    assert left.name not in {file.action.path for file in written}


def test_storage_that_fails_on_executors_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The executor's reason reaches the driver, without Spark's stack traces."""
    files = row_files(create_shape_log(str(tmp_path / "log")), {})
    (tmp_path / "log" / "_delta_log").rename(tmp_path / "_delta_log")
    (tmp_path / "log").rmdir()
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(SinkError, match=r"^shape log \S+/log/? cannot be written: [^\n]*$") as caught:
        write_rows(_rows(spark, 5), files, _block)
    assert "Traceback" not in str(caught.value)


def test_files_that_lack_rows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A snapshot with them would be complete by its end row, and a shape would lack rows for good."""
    files = row_files(create_shape_log(str(tmp_path / "log")), {})
    with pytest.raises(SinkError, match=r"^shape log \S+: files of 4 rows were written for 5 rows$"):
        write_rows(_rows(spark, 5).coalesce(1), files, lambda batch: _block(batch).slice(1))


def test_local_master_starts_a_task_once(spark: SparkSession) -> None:
    """So a storage that fails is reported with its own error, and not with Spark's."""
    assert task_attempts(spark) == 1
