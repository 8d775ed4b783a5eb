"""The rows of the log from the state function to their files: packed, and stored by the task or the driver."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.row_files import RowFiles
from flushtracker.errors import SinkError
from flushtracker.shape_log.log_row import LogRow
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.spark.task_files import written_in_task
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.log_table import create_shape_log, row_files
from flushtracker.shape_log.write.group_state import OUTPUT_SCHEMA
from flushtracker.shape_log.write.packed_rows import PACKED_BYTES, PACKED_ROWS, pack_rows, unpacked
from flushtracker.shape_log.write.stored_rows import store_function

_SOURCE: Final = "7/1/shapes"
_WRITTEN: Final = datetime(2026, 1, 2, 3, 4, 6, tzinfo=timezone.utc)
_TEXTS: Final = (None, "", "ä\x00\U0001f600", "x" * 300)
_TIMES: Final = (None, "2026-01-02T03:04:05Z", "0001-01-01T00:00:00.5Z", "9999-12-31T23:59:59.999999Z")
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64(), "binary": pa.binary()}
_OUTPUT: Final = pa.schema([(each.name, _ARROW[each.dataType.simpleString()]) for each in OUTPUT_SCHEMA.fields])


def random_rows(rng: Random, count: int, size: int) -> list[LogRow]:
    return [
        LogRow(
            *(rng.randrange(2**63), rng.randrange(2**63), rng.choice(["insert", "commit"]), rng.choice(_TEXTS)),
            *(rng.choice([*_TEXTS, "y" * rng.randrange(size)]), rng.choice(_TEXTS), rng.randrange(2**63)),
            *(rng.choice(_TIMES), rng.randrange(100)),
        )
        for _ in range(count)
    ]


def plainly(shape_id: str, row: LogRow) -> dict[str, Any]:
    """The row as a reader of the log gets it."""
    text = row.commit_timestamp
    at = None if text is None else datetime.fromisoformat(text.replace(".5Z", ".500000Z").replace("Z", "+00:00"))
    return {
        "source": _SOURCE,
        "shape_id": shape_id,
        **row._asdict(),
        "commit_timestamp": at,
        "written_at": None if at is None else _WRITTEN,
    }


@pytest.mark.parametrize("seed", range(5))
def test_packed_rows_are_the_rows_in_values_of_limited_size(seed: int) -> None:
    """Spark holds many values at a time, so a large one must not be of many rows."""
    rng = Random(seed)  # noqa: S311  reproducible rows
    rows = random_rows(rng, rng.choice([1, 30, PACKED_ROWS]), rng.choice([10, 1000, 3 * PACKED_BYTES]))
    shape_ids = [f"shape-{rng.randrange(3)}" for _ in rows]
    values = list(pack_rows(_SOURCE, shape_ids, RowColumns.of_rows(rows), _WRITTEN))
    tables = list(unpacked(values))
    assert all(len(table) == 1 or table.nbytes <= PACKED_BYTES for table in tables)
    assert {table.schema for table in tables} == {SCHEMA}
    assert pa.concat_tables(tables).to_pylist() == [
        plainly(shape_id, row) for shape_id, row in zip(shape_ids, rows, strict=True)
    ]


def output(rng: Random, batches: int, rows: int) -> Iterator[pa.RecordBatch]:
    """What the state function may return: packed rows and reports in any order, and batches of nothing."""
    for number in range(batches):
        packed = (
            pack_rows(_SOURCE, ["s"] * rows, RowColumns.of_rows(random_rows(rng, rows, 2000)), _WRITTEN) if rows else ()
        )
        values: list[dict[str, object]] = [{"kind": "log_rows", "packed": value} for value in packed]
        reports: list[dict[str, object]] = [
            {"kind": "shape", "rows": rng.randrange(9)} for _ in range(rng.randrange(3))
        ]
        mixed = [{"source": f"{number}", "tx_offset": -1, "rows": 0, **row} for row in [*values, *reports]]
        rng.shuffle(mixed)
        yield pa.RecordBatch.from_pylist(mixed, _OUTPUT)


def _tables_of(batches: list[pa.RecordBatch]) -> Iterator[pa.Table]:
    return unpacked(row["packed"] for batch in batches for row in batch.to_pylist() if row["packed"] is not None)


def _rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for table in _tables_of(batches) for row in table.to_pylist()]


@pytest.mark.parametrize("few_bytes", [0, 10_000, 1 << 20])
@pytest.mark.parametrize("seed", range(5))
def test_task_stores_all_rows_once_and_leaves_the_reports(tmp_path: Path, seed: int, few_bytes: int) -> None:
    """Either as files, or as rows for the driver; both in their order."""
    rng = Random(seed)  # noqa: S311  reproducible output
    table = create_shape_log(str(tmp_path / "log"))
    given = list(output(rng, rng.randrange(5), rng.choice([0, 1, 40])))
    found = list(store_function(row_files(table, {}), 1, few_bytes)(iter(given)))
    assert {batch.schema for batch in found} <= {_OUTPUT}
    reports = [row for batch in given for row in batch.to_pylist() if row["packed"] is None]
    rows = [row for batch in found for row in batch.to_pylist()]
    assert [row for row in rows if row["kind"] not in {"file", "log_rows"}] == reports
    files = [WrittenFile.parse(row["value"]) for row in rows if row["kind"] == "file"]
    assert [row["rows"] for row in rows if row["kind"] == "file"] == [file.rows for file in files]
    written = [row for file in files for row in pq.read_table(tmp_path / "log" / file.action.path).to_pylist()]
    left = _rows_of(found)
    assert written + left == _rows_of(given)
    assert not (files and left)
    size = sum(table.nbytes for table in _tables_of(given))
    assert bool(files) == (size > few_bytes)


class _Attempt:
    """What Spark tells a task of itself."""

    def __init__(self, number: int) -> None:
        self._number = number

    def attemptNumber(self) -> int:  # noqa: N802  Spark's name
        return self._number


def _attempt(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: _Attempt(number))


def _broken(folder: Path) -> RowFiles:
    """Files of a log whose folder is a file."""
    files = row_files(create_shape_log(str(folder / "log")), {})
    (folder / "log" / "_delta_log").rename(folder / "_delta_log")
    (folder / "log").rmdir()
    (folder / "log").write_text("in the way")
    return files


def test_task_that_cannot_write_fails_until_its_last_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage may fail on one machine alone, such as by a full disk, and Spark starts the task on another."""
    files = _broken(tmp_path)
    for number in range(3):
        _attempt(monkeypatch, number)
        with pytest.raises(SinkError, match=r"cannot be written"):
            list(store_function(files, 4, 0)(output(Random(1), 4, 20)))  # noqa: S311  reproducible output
    # Attempts that were killed with their machines do not count, so there may be more.
    for number in (3, 7):
        _attempt(monkeypatch, number)
        batches = store_function(files, 4, 0)(output(Random(1), 4, 20))  # noqa: S311  likewise
        assert [row["kind"] for batch in batches for row in batch.to_pylist()].count("error") == 1


def test_attempt_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver gets the files of the last attempt, and discards them with those of other tasks."""
    files, rows = row_files(create_shape_log(str(tmp_path / "log")), {}), random_rows(Random(1), 40, 20)  # noqa: S311
    tables = list(unpacked(pack_rows(_SOURCE, ["s"] * len(rows), RowColumns.of_rows(rows), _WRITTEN)))
    written: list[WrittenFile] = []
    write = RowFiles.write

    def write_one(self: RowFiles, blocks: Iterable[pa.Table]) -> Iterator[WrittenFile]:
        written.append(next(write(self, blocks)))
        yield written[-1]
        raise SinkError("the disk is full")

    monkeypatch.setattr(RowFiles, "write", write_one)
    _attempt(monkeypatch, 0)
    with pytest.raises(SinkError, match="the disk is full"):
        written_in_task(files, tables, attempts=2)
    assert len(written) == 1
    assert list((tmp_path / "log").glob("*.parquet")) == []
    _attempt(monkeypatch, 1)
    assert written_in_task(files, tables, attempts=2) == (written[1:], "the disk is full")
    assert [path.name for path in (tmp_path / "log").glob("*.parquet")] == [written[1].action.path]


def test_task_that_cannot_write_returns_the_reason_after_all_input(tmp_path: Path) -> None:
    """The driver raises it; Spark would show a stack trace, and a state function that is cut short is not stored."""
    files = _broken(tmp_path)
    given = list(output(Random(1), 40, 200))  # noqa: S311  reproducible output
    rest = iter(given)
    rows = [row for batch in store_function(files, 4, 0)(rest) for row in batch.to_pylist()]
    (error,) = (row for row in rows if row["kind"] == "error")
    assert error["report"] == "SinkError"
    assert re.fullmatch(rf"shape log {re.escape(files.uri)} cannot be written: .*", error["reason"])
    assert next(rest, None) is None
    assert [row for row in rows if row is not error] == [
        row for batch in given for row in batch.to_pylist() if row["packed"] is None
    ]
