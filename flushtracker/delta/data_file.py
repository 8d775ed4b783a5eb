"""The Parquet files of a table, written and read in blocks of Arrow rows.

A block has at most ``BLOCK_BYTES`` of rows in memory, or a single row. A Parquet file may be a thousand times smaller
than its rows, and its footer does not say how large they are: repeated texts are stored once in a dictionary. So a row
group is read with its dictionaries if that fits into a block, or else a few rows at a time.

A written file is not part of the table until a commit adds it (:mod:`flushtracker.delta.commits`).
"""

import io
import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from flushtracker.delta.new_file import new_file
from flushtracker.delta.storage import StoreFiles

BLOCK_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 64
_WHOLE_BYTES: Final = 32 << 20
"""A file up to this size is requested whole, a larger one column by column."""
_BUFFER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is not part of the table yet, with the action that adds it; sent between processes as text.

    >>> file = WrittenFile(AddAction("a.parquet", 9, {}, 0, data_change=True, stats='{"numRecords": 3}'))
    >>> file.rows, WrittenFile.parse(str(file)) == file
    (3, True)
    """

    action: AddAction

    @classmethod
    def parse(cls, text: str) -> "WrittenFile":
        return cls(AddAction(**json.loads(text)))

    @property
    def rows(self) -> int:
        return int(json.loads(self.action.stats)["numRecords"])

    def __str__(self) -> str:
        return json.dumps(asdict(self.action))


def write_file(
    storage: StoreFiles, path: str, rows: pa.Table, searched: Collection[str] = (), *, is_change: bool = True
) -> AddAction:
    """Write a file with statistics of the columns ``searched``; ``is_change`` unless its rows are already in
    the table.
    """
    return write_blocks(storage, path, [rows], rows.schema, searched, is_change=is_change)


def write_blocks(
    storage: StoreFiles,
    path: str,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    searched: Collection[str] = (),
    *,
    is_change: bool = True,
) -> AddAction:
    """Write the rows of all tables as a file, as they are read; each block is a row group."""
    with new_file(storage, path) as stream:
        # Without Arrow's schema in the file, it has the types that any Delta writer gives it.
        with pq.ParquetWriter(stream, schema, compression="zstd", store_schema=False) as writer:
            for block in regrouped(tables):
                writer.write_table(block)
        size, footer = stream.tell(), writer.writer.metadata
    statistics = json.dumps(_statistics(footer, searched))
    return AddAction(path, size, {}, now_ms(), data_change=is_change, stats=statistics)


def regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in blocks as large as possible."""
    pending, size = list[pa.Table](), 0
    for table in tables:
        for part in halved(table, BLOCK_BYTES):
            if pending and size + part.nbytes > BLOCK_BYTES:
                yield pa.concat_tables(pending).combine_chunks()
                pending, size = [], 0
            pending.append(part)
            size += part.nbytes
    if size:
        yield pa.concat_tables(pending).combine_chunks()


def read_blocks(storage: DeltaStorageHandler, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """A file's rows in blocks, with the columns of ``schema``; missing ones are null."""
    handle = storage.open_input_file(path)
    source = io.BytesIO(handle.read()) if handle.size() <= _WHOLE_BYTES else pa.PythonFile(handle, "r")
    yield from regrouped(_with_schema(table, schema) for table in _tables(source))


def now_ms() -> int:
    return int(time.time() * 1000)


def _tables(source: BinaryIO | pa.PythonFile) -> Iterator[pa.Table]:
    """The rows of a file; texts of a small row group stay dictionary-encoded, as in the file."""
    # Arrow's own threads must not call back into Python.
    plain = pq.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    texts = [field.name for field in plain.schema_arrow if pa.types.is_string(field.type)]
    encoded = pq.ParquetFile(source, metadata=plain.metadata, read_dictionary=texts, pre_buffer=False)
    for number in range(plain.num_row_groups):
        group = plain.metadata.row_group(number)
        if group.total_byte_size <= BLOCK_BYTES:
            yield from halved(encoded.read_row_group(number, use_threads=False), BLOCK_BYTES)
            continue
        rows = max(1, min(_BATCH_ROWS, group.num_rows * BLOCK_BYTES // group.total_byte_size))
        pending, size = list[pa.RecordBatch](), 0
        for batch in plain.iter_batches(rows, row_groups=[number], use_threads=False):
            pending.append(batch)
            size += batch.nbytes
            if size >= BLOCK_BYTES:
                yield pa.Table.from_batches(pending)
                pending, size = [], 0
        if pending:
            yield pa.Table.from_batches(pending)


def _with_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _bytes(table: pa.Table) -> int:
    """The size of a table's rows, with dictionary-encoded texts expanded."""
    size = 0
    for column in table.columns:
        if not pa.types.is_dictionary(column.type):
            size += column.nbytes
            continue
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            size += chunk.indices.nbytes + (pc.sum(lengths).as_py() or 0)
    return size


def halved(table: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """The same rows in parts of at most ``most_bytes``, or a single row."""
    if len(table) < 2 or _bytes(table) <= most_bytes:
        yield table
        return
    middle = len(table) // 2
    yield from halved(table.slice(0, middle), most_bytes)
    yield from halved(table.slice(middle), most_bytes)


def _statistics(footer: pq.FileMetaData, searched: Collection[str]) -> dict[str, Any]:
    columns = {footer.schema.column(index).name: index for index in range(footer.num_columns)}
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    found = {name: [group.column(columns[name]).statistics for group in groups] for name in searched}
    # If a column has no range in some row group, it has none for the file.
    ranged = {name: each for name, each in found.items() if each and all(group and group.has_min_max for group in each)}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: min(group.min for group in each) for name, each in ranged.items()},
        "maxValues": {name: max(group.max for group in each) for name, each in ranged.items()},
        "nullCount": {name: sum(group.null_count for group in each) for name, each in ranged.items()},
    }
