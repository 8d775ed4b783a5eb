"""``Compaction``: merges the small files of a table to which each commit adds one, and deletes the replaced ones.

They are found by a *full* vacuum: the default one knows only the replaced files that the log still names, and log
checkpoints drop these after the same retention. A file that another process has written but not committed yet is
younger than the retention.
"""

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import read_blocks, write_blocks
from flushtracker.delta.storage import StoreFiles, storage_reason
from flushtracker.delta.table_folder import TableFolder

logger = logging.getLogger(__name__)

COMPACT_EVERY: Final = 100
"""Versions of a table between two compactions; the more files it has, the slower an append."""


class Compaction:
    """The compaction of the table in a folder, into files of about ``merged_bytes``."""

    def __init__(
        self,
        folder: TableFolder,
        storage_options: Mapping[str, str] | None,
        merged_bytes: int,
        searched: Collection[str] = (),
    ) -> None:
        self._folder = folder
        self._options = dict(storage_options or {})
        self._merged_bytes, self._searched = merged_bytes, searched

    def run_if_due(self, table: DeltaTable, commits: Commits, before: int) -> None:
        """Compact if the version has passed a multiple of ``COMPACT_EVERY`` since ``before``."""
        if table.version() // COMPACT_EVERY > before // COMPACT_EVERY:
            self.run(table, commits)

    def run(self, table: DeltaTable, commits: Commits) -> None:
        """Compact; a failure only costs time later, so it is just logged."""
        try:
            self._merge(table, commits)
            self._folder.delete_old_files(table)
        except (DeltaError, OSError, pa.ArrowException) as error:
            reason = storage_reason(error)
            logger.warning("%s not compacted uri=%s reason=%s", self._folder.kind, self._folder.uri, reason)

    def _merge(self, table: DeltaTable, commits: Commits) -> None:
        """Merge files in one commit; does nothing if another process was first.

        deltalake's own compaction commits files that have not been synced.
        """
        table.update_incremental()
        schema = pa.schema(table.schema())
        removed, added = [], []
        for group in _groups(table, self._merged_bytes):
            storage = StoreFiles(table.table_uri, self._options, dict(group))
            # In blocks, because a small file may be large in memory.
            blocks = (block for path, _ in group for block in read_blocks(storage, path, schema))
            name = f"part-{uuid.uuid4().hex}.parquet"
            added.append(write_blocks(storage, name, blocks, schema, self._searched, is_change=False))
            removed += group
        if removed:
            commits.replace(table, removed, added)


def _groups(table: DeltaTable, target_bytes: int) -> Iterator[list[tuple[str, int]]]:
    """The groups of files to merge, by path and size, the oldest first."""
    files = pa.table(table.get_add_actions()).sort_by("modification_time").to_pylist()
    group: list[tuple[str, int]] = []
    for file in files:
        if file["size_bytes"] < target_bytes:
            group.append((file["path"], file["size_bytes"]))
        if sum(size for _, size in group) >= target_bytes:
            yield group
            group = []
    if len(group) > 1:
        yield group
