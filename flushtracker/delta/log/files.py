"""The data files of a shape log: what the table's log says about them, and reading and writing whole files.

The name of a file says which run it is part of. Names are part of the table's state, and no other program writes such
names: a file that another program has compacted counts as appended, and is sorted again.
"""

import io
import json
import re
import struct
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from flushtracker.delta.log.table import SEARCHED, unreadable

_PART_OF_RUN: Final = re.compile(r"run-(\d{20})-(\d{6})-.*\.parquet")
_ROW_GROUPS: Final = 8
_LEAST_ROW_GROUP: Final = 1024
_BUFFER_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 20
_FOOTER_END: Final = 8
"""Bytes at a Parquet file's end: the length of its footer, and a mark."""

ShapeKey = tuple[str, str]
"""Source and shape id."""
RunPart = tuple[int, int]
"""A run, and the number of a file in it: the rows of a run's files, in this order, are sorted."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the table's current version.

    If known, ``first_id`` and ``last_id`` bound the ids of its shapes, and ``first_tx`` is the least ``tx_offset``.
    """

    path: str
    bytes: int
    rows: int
    modified_ms: int
    first_id: str | None
    last_id: str | None
    first_tx: int | None

    @property
    def part(self) -> RunPart | None:
        """Its run, and its number there; ``None`` for a file that was appended."""
        match = _PART_OF_RUN.fullmatch(self.path)
        return None if match is None else (int(match[1]), int(match[2]))

    @property
    def run(self) -> int | None:
        """The run that it is part of; ``None`` for a file that was appended."""
        return None if self.part is None else self.part[0]

    @property
    def may_have_snapshot(self) -> bool:
        """Whether some rows may be those of snapshots, which come before every transaction."""
        return self.first_tx is None or self.first_tx <= 0

    def may_have(self, shape_ids: Collection[str]) -> bool:
        first, last = self.first_id, self.last_id
        return any(first is None or last is None or first <= shape_id <= last for shape_id in shape_ids)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is not part of the table yet, and the action that adds it."""

    rows: int
    action: AddAction


class LogFiles:
    """The files of one shape log. Raises ``DeltaError``, ``OSError`` or ``ArrowException``."""

    def __init__(self, table: DeltaTable, storage_options: Mapping[str, str]) -> None:
        self._table = table
        self._storage = DeltaStorageHandler(table.table_uri, dict(storage_options))

    def current(self) -> list[LogFile]:
        """The files of the table's newest version."""
        self._table.update_incremental()
        return [
            LogFile(
                path=row["path"],
                bytes=row["size_bytes"],
                rows=row["num_records"] or 0,
                modified_ms=row["modification_time"],
                first_id=row.get("min.shape_id"),
                last_id=row.get("max.shape_id"),
                first_tx=row.get("min.tx_offset"),
            )
            for row in pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        ]

    def read(self, path: str) -> pa.Table:
        """A file's rows, with the table's columns; texts have 64-bit offsets, so that tables can be sorted together."""
        # The file is read here and parsed from memory: Arrow's own threads must not call back into Python.
        rows = pq.read_table(io.BytesIO(self._storage.open_input_file(path).read()))
        schema = _wide_schema(pa.schema(self._table.schema()))
        columns = [
            rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema).combine_chunks()

    def read_each(self, files: Iterable[LogFile]) -> Iterator[pa.Table]:
        """The rows of the files, one file at a time."""
        for file in files:
            yield self.read(file.path)

    def write(self, rows: pa.Table, part: RunPart | None) -> AddAction:
        """Write a file, as part of a run or of none; it is not part of the table until :meth:`replace`."""
        content = io.BytesIO()
        group = max(_LEAST_ROW_GROUP, len(rows) // _ROW_GROUPS)
        # Without Arrow's own schema in the file, it has the types that any Delta writer gives it.
        pq.write_table(rows, content, row_group_size=group, compression="zstd", store_schema=False)
        name = "part" if part is None else f"run-{part[0]:020}-{part[1]:06}"
        path, data = f"{name}-{uuid.uuid4().hex}.parquet", content.getvalue()
        # deltalake's stream accepts only bytes, and only Arrow's buffered stream passes bytes.
        with pa.BufferedOutputStream(self._storage.open_output_stream(path), _BUFFER_BYTES) as stream:
            stream.write(data)
        return AddAction(path, len(data), {}, _now_ms(), data_change=False, stats=json.dumps(_statistics(rows)))

    def written(self, path: str) -> WrittenFile:
        """A file of rows to append that Spark has written, with the statistics of its footer; raises ``SinkError``."""
        try:
            file = self._storage.open_input_file(path)
            size = file.size()
            file.seek(size - _FOOTER_END)
            (length,) = struct.unpack("<I4x", file.read())
            file.seek(size - length - _FOOTER_END)
            footer = pq.read_metadata(io.BytesIO(file.read()))
        except (DeltaError, OSError) as error:
            raise unreadable(f"{self._table.table_uri}{path}", error) from error
        statistics = json.dumps(_footer_statistics(footer))
        action = AddAction(path, size, {}, _now_ms(), data_change=True, stats=statistics)
        return WrittenFile(footer.num_rows, action)

    def replace(
        self,
        removed: Iterable[LogFile],
        added: Iterable[AddAction],
        *,
        is_deletion: bool = False,
        transaction: Transaction | None = None,
    ) -> bool:
        """Replace files in one commit; false if another process has replaced one of them first.

        deltalake does not check whether another commit has removed the same files, which would duplicate their rows. So
        this commits exactly the version after the one in which all ``removed`` were present, and checks again if
        another commit was first.
        """
        files = list(removed)
        for _ in range(_ATTEMPTS):
            active = {file.path for file in self.current()}
            if any(file.path not in active for file in files):
                return False
            deleted_ms = _now_ms()
            properties = CommitProperties(
                max_commit_retries=0, app_transactions=[] if transaction is None else [transaction]
            )
            actions = [RemoveAction(file.path, is_deletion, deleted_ms, file.bytes, {}) for file in files]
            try:
                self._table.create_write_transaction(
                    [*actions, *added], "append", self._table.schema(), commit_properties=properties
                )
            except CommitFailedError:
                continue
            return True
        return False


def by_run(files: Iterable[LogFile]) -> dict[int, list[LogFile]]:
    """The files of each run, in the order of their rows."""
    runs: dict[int, list[LogFile]] = {}
    for file in sorted(files, key=lambda file: file.part or (0, 0)):
        if file.run is not None:
            runs.setdefault(file.run, []).append(file)
    return runs


def _wide_schema(schema: pa.Schema) -> pa.Schema:
    texts = (pa.string(), pa.string_view())
    return pa.schema([field.with_type(pa.large_string()) if field.type in texts else field for field in schema])


def _statistics(rows: pa.Table) -> dict[str, Any]:
    ranges = {name: pc.min_max(rows[name]).as_py() for name in SEARCHED}
    return {
        "numRecords": len(rows),
        "minValues": {name: found["min"] for name, found in ranges.items()},
        "maxValues": {name: found["max"] for name, found in ranges.items()},
        "nullCount": {name: rows[name].null_count for name in SEARCHED},
    }


def _footer_statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    columns = {footer.schema.column(index).name: index for index in range(footer.num_columns)}
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    found = {name: [group.column(columns[name]).statistics for group in groups] for name in SEARCHED}
    # A column without a range in one row group has none for the file.
    ranged = {name: each for name, each in found.items() if each and all(group and group.has_min_max for group in each)}
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: min(group.min for group in each) for name, each in ranged.items()},
        "maxValues": {name: max(group.max for group in each) for name, each in ranged.items()},
        "nullCount": {name: sum(group.null_count for group in each) for name, each in ranged.items()},
    }


def _now_ms() -> int:
    return int(time.time() * 1000)
