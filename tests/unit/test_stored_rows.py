"""The rows of the log from the state function to their files: packed, and stored by the task or the driver."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flushtracker.delta.data_file import WrittenFile
from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.table import create_shape_log, row_files
from flushtracker.jobs.write.group_state import OUTPUT_SCHEMA
from flushtracker.jobs.write.packed_rows import PACKED_BYTES, PACKED_ROWS, pack_rows, unpacked
from flushtracker.jobs.write.stored_rows import store_function
from flushtracker.shape_log.log_row import LogRow
from flushtracker.shape_log.row_columns import RowColumns

_SOURCE: Final = "7/1/shapes"
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
    return {"source": _SOURCE, "shape_id": shape_id, **row._asdict(), "commit_timestamp": at}


@pytest.mark.parametrize("seed", range(5))
def test_packed_rows_are_the_rows_in_values_of_limited_size(seed: int) -> None:
    """Spark holds many values at a time, so a large one must not be of many rows."""
    rng = Random(seed)  # noqa: S311  reproducible rows
    rows = random_rows(rng, rng.choice([1, 30, PACKED_ROWS]), rng.choice([10, 1000, 3 * PACKED_BYTES]))
    shape_ids = [f"shape-{rng.randrange(3)}" for _ in rows]
    values = list(pack_rows(_SOURCE, shape_ids, RowColumns.of_rows(rows)))
    tables = list(unpacked(values))
    assert all(len(table) == 1 or table.nbytes <= PACKED_BYTES for table in tables)
    assert {table.schema for table in tables} == {SCHEMA}
    assert pa.concat_tables(tables).to_pylist() == [
        plainly(shape_id, row) for shape_id, row in zip(shape_ids, rows, strict=True)
    ]


def output(rng: Random, batches: int, rows: int) -> Iterator[pa.RecordBatch]:
    """What the state function may return: packed rows and reports in any order, and batches of nothing."""
    for number in range(batches):
        packed = pack_rows(_SOURCE, ["s"] * rows, RowColumns.of_rows(random_rows(rng, rows, 2000))) if rows else ()
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
    found = list(store_function(row_files(table, {}), few_bytes)(iter(given)))
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


def test_task_that_cannot_write_returns_the_reason_after_all_input(tmp_path: Path) -> None:
    """The driver raises it; Spark would show a stack trace, and a state function that is cut short is not stored."""
    files = row_files(create_shape_log(str(tmp_path / "log")), {})
    (tmp_path / "log" / "_delta_log").rename(tmp_path / "_delta_log")
    (tmp_path / "log").rmdir()
    (tmp_path / "log").write_text("in the way")
    given = list(output(Random(1), 40, 200))  # noqa: S311  reproducible output
    rest = iter(given)
    rows = [row for batch in store_function(files, 0)(rest) for row in batch.to_pylist()]
    (error,) = (row for row in rows if row["kind"] == "error")
    assert error["report"] == "SinkError"
    assert re.fullmatch(rf"shape log {re.escape(files.uri)} cannot be written: .*", error["reason"])
    assert next(rest, None) is None
    assert [row for row in rows if row is not error] == [
        row for batch in given for row in batch.to_pylist() if row["packed"] is None
    ]
