"""``RowFiles``: rows as Parquet files of a table, written by executors or the driver, for a commit by the driver.

Names are unique. So files left by a killed or repeated task are unreferenced, and upkeep deletes them.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from flushtracker.config.storage_path import local_folder
from flushtracker.delta.data_file import WrittenFile, write_blocks
from flushtracker.delta.storage import StoreFiles, storage_reason
from flushtracker.disk_sync import sync
from flushtracker.errors import SinkError

ROWS_PER_FILE: Final = 100_000
"""The maximum per file, unless a block has more, so that upkeep seldom has to divide a file."""


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Writes files of the ``kind`` of table at ``uri``; sent to executors. The ``options`` may hold secrets."""

    kind: str
    uri: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema
    searched: Sequence[str] = ()

    @classmethod
    def of(
        cls, kind: str, table: DeltaTable, options: Mapping[str, str], schema: pa.Schema, searched: Sequence[str] = ()
    ) -> "RowFiles":
        return cls(kind, table.table_uri, dict(options), schema, searched)

    def write(self, blocks: Iterable[pa.Table]) -> Iterator[WrittenFile]:
        """Write the rows of all blocks, as they are read; a file is complete once yielded. Raises ``SinkError``."""
        rest = filter(len, blocks)
        while (first := next(rest, None)) is not None:
            try:
                storage = StoreFiles(self.uri, self.options)
                name = f"part-{uuid.uuid4().hex}.parquet"
                action = write_blocks(storage, name, _one_file(first, rest), self.schema, self.searched)
                if folder := local_folder(self.uri):
                    # On the machine that wrote it, because closing a file does not report errors.
                    sync(Path(folder, name))
            except (DeltaError, OSError) as error:
                raise SinkError(f"{self.kind} {self.uri} cannot be written: {storage_reason(error)}") from error
            yield WrittenFile(action)

    def require(self, files: Sequence[WrittenFile]) -> None:
        """Raise ``SinkError`` if this process does not find files that executors have written in its storage."""
        paths = [file.action.path for file in files]
        try:
            found = DeltaStorageHandler(self.uri, dict(self.options)).get_file_info(paths)
        except (DeltaError, OSError) as error:
            raise SinkError(f"{self.kind} {self.uri} cannot be read: {storage_reason(error)}") from error
        missing = [file.action.path for file, info in zip(files, found, strict=True) if info.size != file.action.size]
        if missing:
            raise SinkError(
                f"{self.kind} {self.uri}: {len(missing)} of {len(files)} files that were just written are not there, "
                f"such as {missing[0]}; give driver and executors the same storage, and let only flushtracker write "
                "there"
            )

    def require_rows(self, files: Iterable[WrittenFile], rows: int) -> None:
        """Raise ``SinkError`` unless the files have this number of rows together."""
        if (written := sum(file.rows for file in files)) != rows:
            raise SinkError(f"{self.kind} {self.uri}: files of {written} rows were written for {rows} rows")

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Delete files that will not be committed, as far as possible: upkeep deletes the rest."""
        for file in files:
            with suppress(DeltaError, OSError):
                StoreFiles(self.uri, self.options).delete_file(file.action.path)


def _one_file(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    rows = 0
    for block in chain([first], rest):
        yield block
        rows += len(block)
        if rows >= ROWS_PER_FILE:
            return
