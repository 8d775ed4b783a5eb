"""Rows of the shape log between the state function and their files, as Arrow data in one binary value.

Otherwise Spark would convert each one to a row of its own, and back.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import pyarrow as pa

from flushtracker.delta.data_file import halved
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.table.columns import SCHEMA

PACKED_ROWS: Final = 1_000
PACKED_BYTES: Final = 256 << 10
"""The maximum size of a value, unless it is a single row. A worker holds up to 500 values at a time."""


def pack_rows(source: str, shape_ids: list[str], rows: RowColumns, written_at: datetime) -> Iterator[bytes]:
    """The rows with their ``shape_ids``, as values of limited size; commits get the time ``written_at``.

    Retention uses that time, because a replication origin may set any commit time.
    """
    tx_offsets, op_offsets, operations, keys, values, old_values, xids, timestamps, chunks = rows.columns
    columns = {
        "source": [source] * len(rows),
        "shape_id": shape_ids,
        "tx_offset": tx_offsets,
        "op_offset": op_offsets,
        "operation": operations,
        "key": keys,
        "value": values,
        "old_value": old_values,
        "xid": xids,
        "commit_timestamp": pa.array(timestamps, pa.string()).cast(SCHEMA.field("commit_timestamp").type),
        "chunk": chunks,
        "written_at": [None if text is None else written_at for text in timestamps],
    }
    for part in halved(pa.Table.from_pydict(columns, SCHEMA), PACKED_BYTES):
        yield pack_blocks(part)


def pack_blocks(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def unpacked(values: Iterable[bytes | bytearray | pa.Buffer]) -> Iterator[pa.Table]:
    for value in values:
        with pa.ipc.open_stream(value) as stream:
            yield stream.read_all()
