"""The data files of a shape log: what the table's log says about them, and reading and writing whole files.

The name of a file says which run it is part of. Names are part of the table's state, and no other program writes such
names: a file that another program has compacted counts as appended, and is sorted again.
"""

import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import WrittenFile, read_file, write_file, written_file
from flushtracker.delta.log.snapshots import REPLACED_APP_ID, last_snapshots
from flushtracker.delta.log.table import SEARCHED, unreadable, unwritable
from flushtracker.delta.storage import literal
from flushtracker.errors import SinkError
from flushtracker.shape_log.shape_snapshot import ShapeKey, ShapeSnapshot

_PART_OF_RUN: Final = re.compile(r"run-(\d{20})-(\d{6})-.*\.parquet")
_ROW_GROUPS: Final = 8
_LEAST_ROW_GROUP: Final = 1024
_ATTEMPTS: Final = 5

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

    def may_have(self, shape_ids: Collection[str]) -> bool:
        first, last = self.first_id, self.last_id
        return any(first is None or last is None or first <= shape_id <= last for shape_id in shape_ids)


class LogFiles:
    """The files of one shape log. Raises ``DeltaError``, ``OSError`` or ``ArrowException``."""

    def __init__(self, table: DeltaTable, storage_options: Mapping[str, str]) -> None:
        self._table = table
        self._storage = DeltaStorageHandler(table.table_uri, dict(storage_options))
        self._commits = Commits()

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
        return read_file(self._storage, path, _wide_schema(pa.schema(self._table.schema()))).combine_chunks()

    def read_each(self, files: Iterable[LogFile]) -> Iterator[pa.Table]:
        """The rows of the files, one file at a time."""
        for file in files:
            yield self.read(file.path)

    def write(self, rows: pa.Table, part: RunPart | None, *, is_change: bool = False) -> AddAction:
        """Write a file, as part of a run or of none; it is not part of the table until :meth:`replace`.

        ``is_change``: its commit also adds or deletes rows, rather than just moving them.
        """
        name = "part" if part is None else f"run-{part[0]:020}-{part[1]:06}"
        path, group = f"{name}-{uuid.uuid4().hex}.parquet", max(_LEAST_ROW_GROUP, len(rows) // _ROW_GROUPS)
        return write_file(self._storage, path, rows, SEARCHED, row_group_rows=group, is_change=is_change)

    def written(self, path: str) -> WrittenFile:
        """A file of rows to append that Spark has written, with the statistics of its footer; raises ``SinkError``."""
        try:
            return written_file(self._storage, path, SEARCHED)
        except (DeltaError, OSError) as error:
            raise unreadable(f"{self._table.table_uri}{path}", error) from error

    def append_snapshot(
        self, files: Iterable[WrittenFile], keys: Collection[ShapeKey], snapshot: ShapeSnapshot
    ) -> None:
        """Add files with the rows of a snapshot of these shapes in one commit; durable when this returns.

        This neither claims the log nor respects a claim, so it is not for the rows of transactions.

        Raises:
            SinkError: the table cannot be written, or the log of a shape was folded past the snapshot.
        """
        actions = [file.action for file in files]
        for left in reversed(range(_ATTEMPTS)):
            refused = self._try_append(actions, keys, snapshot)
            if refused is None:
                return
            if not left:
                raise unwritable(self._table.table_uri, refused) from refused

    def _try_append(
        self, actions: Sequence[AddAction], keys: Collection[ShapeKey], snapshot: ShapeSnapshot
    ) -> CommitFailedError | None:
        """Commit once; returns the error if upkeep folds, or deletes the log of a removed shape, at that moment."""
        try:
            self._table.update_incremental()
            shape_ids = ", ".join(sorted({literal(shape_id) for _, shape_id in keys}))
            current = last_snapshots(self._table, f"shape_id IN ({shape_ids})")
            for source, shape_id in keys:
                if not snapshot.may_replace(current.get((source, shape_id))):
                    raise SinkError(
                        f"the log of shape {shape_id} of source {source} is folded up to transactions that the "
                        "snapshot does not contain, because they became visible later, or were committed later; "
                        "take the snapshot again"
                    )
            self._commits.commit(self._table, actions, [self.next_snapshot()])
        except CommitFailedError as error:
            return error
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error
        return None

    def next_snapshot(self) -> Transaction:
        """What a commit that adds snapshots or folds must carry, given the open version of the table."""
        return Transaction(REPLACED_APP_ID, (self._table.transaction_version(REPLACED_APP_ID) or 0) + 1)

    def replace(
        self,
        removed: Iterable[LogFile],
        added: Iterable[AddAction],
        *,
        is_deletion: bool = False,
        transaction: Transaction | None = None,
    ) -> bool:
        """Replace files in one commit; false if another process has replaced one of them first."""
        files = [(file.path, file.bytes) for file in removed]
        transactions = [] if transaction is None else [transaction]
        return self._commits.replace(self._table, files, list(added), transactions, is_deletion=is_deletion)


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
