"""The Parquet files of a table: written from Arrow's rows, read whole, or described once Spark has written them.

A file that is written is not part of the table before a commit adds it (:mod:`flushtracker.delta.commits`).
"""

import io
import json
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

_BUFFER_BYTES: Final = 1 << 20
_FOOTER_END: Final = 8
"""Bytes at a Parquet file's end: the length of its footer, and a mark."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is not part of the table yet, and the action that adds it."""

    rows: int
    action: AddAction


def write_file(
    storage: DeltaStorageHandler,
    path: str,
    rows: pa.Table,
    searched: Collection[str] = (),
    *,
    row_group_rows: int = 1 << 20,
    is_change: bool = True,
) -> AddAction:
    """Write a file with the ranges of the columns ``searched``; ``is_change``: not just rows that the table has."""
    content = io.BytesIO()
    # Without Arrow's own schema in the file, it has the types that any Delta writer gives it.
    pq.write_table(rows, content, row_group_size=row_group_rows, compression="zstd", store_schema=False)
    data = content.getvalue()
    # deltalake's stream accepts only bytes, and only Arrow's buffered stream passes bytes.
    with pa.BufferedOutputStream(storage.open_output_stream(path), _BUFFER_BYTES) as stream:
        stream.write(data)
    statistics = json.dumps(_statistics(rows, searched))
    return AddAction(path, len(data), {}, now_ms(), data_change=is_change, stats=statistics)


def read_file(storage: DeltaStorageHandler, path: str, schema: pa.Schema) -> pa.Table:
    """A file's rows, with the columns of ``schema``; those that it lacks are null."""
    # The file is read here and parsed from memory: Arrow's own threads must not call back into Python.
    rows = pq.read_table(io.BytesIO(storage.open_input_file(path).read()))
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def written_file(storage: DeltaStorageHandler, path: str, searched: Collection[str] = ()) -> WrittenFile:
    """A file that Spark has written, with the statistics of its footer."""
    file = storage.open_input_file(path)
    size = file.size()
    file.seek(size - _FOOTER_END)
    (length,) = struct.unpack("<I4x", file.read())
    file.seek(size - length - _FOOTER_END)
    footer = pq.read_metadata(io.BytesIO(file.read()))
    statistics = json.dumps(_footer_statistics(footer, searched))
    return WrittenFile(footer.num_rows, AddAction(path, size, {}, now_ms(), data_change=True, stats=statistics))


def now_ms() -> int:
    return int(time.time() * 1000)


def _statistics(rows: pa.Table, searched: Collection[str]) -> dict[str, Any]:
    ranges = {name: pc.min_max(rows[name]).as_py() for name in searched}
    return {
        "numRecords": len(rows),
        "minValues": {name: found["min"] for name, found in ranges.items()},
        "maxValues": {name: found["max"] for name, found in ranges.items()},
        "nullCount": {name: rows[name].null_count for name in searched},
    }


def _footer_statistics(footer: pq.FileMetaData, searched: Collection[str]) -> dict[str, Any]:
    columns = {footer.schema.column(index).name: index for index in range(footer.num_columns)}
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    found = {name: [group.column(columns[name]).statistics for group in groups] for name in searched}
    # A column without a range in one row group has none for the file.
    ranged = {name: each for name, each in found.items() if each and all(group and group.has_min_max for group in each)}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: min(group.min for group in each) for name, each in ranged.items()},
        "maxValues": {name: max(group.max for group in each) for name, each in ranged.items()},
        "nullCount": {name: sum(group.null_count for group in each) for name, each in ranged.items()},
    }
