"""Merges the small files of tables to which each commit adds a small file."""

import uuid
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import read_blocks, write_blocks


def compact(
    table: DeltaTable,
    commits: Commits,
    storage_options: Mapping[str, str],
    target_bytes: int,
    searched: Collection[str] = (),
) -> None:
    """Merge files up to about ``target_bytes`` each, in one commit; does nothing if another process was first.

    deltalake's own compaction commits files that have not been synced. Raises ``DeltaError``, ``OSError`` or
    ``ArrowException``.
    """
    table.update_incremental()
    storage = DeltaStorageHandler(table.table_uri, dict(storage_options))
    schema = pa.schema(table.schema())
    removed, added = [], []
    for group in _groups(table, target_bytes):
        # In blocks, because a small file may be large in memory.
        blocks = (block for path, _ in group for block in read_blocks(storage, path, schema))
        name = f"part-{uuid.uuid4().hex}.parquet"
        added.append(write_blocks(storage, name, blocks, schema, searched, is_change=False))
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
