"""The data files of a shape log: what the table's log says about them, and how they are read and written.

A file's name says which run it belongs to. Names are part of the table's state, and no other program writes such names:
a file that another program has compacted counts as appended, and is sorted again.
"""

import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from flushtracker.delta.commits import Commits
from flushtracker.delta.data_file import WrittenFile, read_blocks, write_blocks
from flushtracker.delta.storage import StoreFiles, brief_files, literal, refresh
from flushtracker.errors import SinkError
from flushtracker.shape_log.shape_snapshot import ShapeKey, ShapeSnapshot
from flushtracker.shape_log.table.columns import SEARCHED
from flushtracker.shape_log.table.log_table import unreadable, unwritable
from flushtracker.shape_log.table.snapshots import REPLACED_APP_ID, end_rows, last_snapshots

_PART_OF_RUN: Final = re.compile(r"run-(\d{20})-(\d{6})-.*\.parquet")
_ATTEMPTS: Final = 5
_FOOTER_BYTES: Final = 8

_Following = Callable[[Mapping[ShapeKey, ShapeSnapshot]], Sequence[AddAction]]
"""Returns the files to commit, given these snapshots."""

RunPart = tuple[int, int]
"""A run and the number of a file in it; in this order, the rows of a run's files are sorted."""


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
        """Its run and its number there; ``None`` for an appended file."""
        match = _PART_OF_RUN.fullmatch(self.path)
        return None if match is None else (int(match[1]), int(match[2]))

    @property
    def run(self) -> int | None:
        """Its run; ``None`` for an appended file."""
        return None if self.part is None else self.part[0]

    def may_have(self, shape_ids: Collection[str]) -> bool:
        first, last = self.first_id, self.last_id
        return any(first is None or last is None or first <= shape_id <= last for shape_id in shape_ids)


def log_files(table: DeltaTable) -> list[LogFile]:
    """The files of the version in which the log is open; reads nothing."""
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
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    ]


def require_answer(table: DeltaTable, options: Mapping[str, str], file: LogFile) -> None:
    """Raise ``SinkError`` unless the store answers for a file within 2 s, even if that it has none."""
    sizes = {file.path: file.bytes}
    try:
        content = brief_files(table.table_uri, options, sizes=sizes).open_input_file(file.path)
        content.seek(max(file.bytes - _FOOTER_BYTES, 0))
        content.read(_FOOTER_BYTES)
    except FileNotFoundError:
        return
    except (DeltaError, OSError) as error:
        raise unreadable(table.table_uri, error) from error


class LogFiles:
    """The files of one shape log. Raises ``DeltaError``, ``OSError`` or ``ArrowException``."""

    def __init__(self, table: DeltaTable, storage_options: Mapping[str, str]) -> None:
        self._table = table
        self._options = storage_options
        self._storage = StoreFiles(table.table_uri, storage_options)
        self._commits = Commits()

    def current(self) -> list[LogFile]:
        refresh(self._table)
        files = log_files(self._table)
        self._storage = StoreFiles(self._table.table_uri, self._options, {file.path: file.bytes for file in files})
        return files

    def read(self, path: str) -> pa.Table:
        """All rows of a file, with the table's columns."""
        return pa.concat_tables([self._schema().empty_table(), *self.read_blocks([path])])

    def read_blocks(self, paths: Iterable[str]) -> Iterator[pa.Table]:
        """The rows of files, with the table's columns, in blocks."""
        for path in paths:
            yield from read_blocks(self._storage, path, self._schema())

    def write(self, rows: pa.Table, part: RunPart | None, *, is_change: bool = False) -> AddAction:
        """Write a file, of a run or of none; it is not part of the table until :meth:`replace`.

        ``is_change``: the commit adds or deletes rows, rather than just moving them.
        """
        return self.write_blocks([rows], part, is_change=is_change)

    def write_blocks(self, tables: Iterable[pa.Table], part: RunPart | None, *, is_change: bool = False) -> AddAction:
        """Write a file as :meth:`write` does, from several tables, as they are read."""
        name = "part" if part is None else f"run-{part[0]:020}-{part[1]:06}"
        path = f"{name}-{uuid.uuid4().hex}.parquet"
        return write_blocks(self._storage, path, tables, self._schema(), SEARCHED, is_change=is_change)

    def rewrite(self, file: LogFile, keep: Callable[[pa.Table], pa.Table]) -> list[AddAction] | None:
        """Rewrite a file with the rows that ``keep`` leaves of its blocks, if any; ``None`` if it leaves all."""
        return self._rewrite(file.path, file.part, keep)

    def _rewrite(self, path: str, part: RunPart | None, keep: Callable[[pa.Table], pa.Table]) -> list[AddAction] | None:
        if all(len(keep(block)) == len(block) for block in self.read_blocks([path])):
            return None
        kept = filter(len, map(keep, self.read_blocks([path])))
        first = next(kept, None)
        return [] if first is None else [self.write_blocks(chain([first], kept), part, is_change=True)]

    def without(self, files: Iterable[WrittenFile], shape_ids: Collection[str]) -> list[WrittenFile]:
        """Files not yet in the table, without the rows of these shapes; raises ``SinkError``."""
        left_out, found = pa.array(sorted(shape_ids), pa.string()), list[WrittenFile]()

        def others(rows: pa.Table) -> pa.Table:
            return rows.filter(pc.invert(pc.is_in(rows["shape_id"].cast(pa.string()), left_out)))

        try:
            for file in files:
                kept = self._rewrite(file.action.path, None, others) if shape_ids else None
                found += [file] if kept is None else map(WrittenFile, kept)
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error
        return found

    def write_ends(self, ends: Mapping[ShapeKey, ShapeSnapshot], taken_at: datetime) -> WrittenFile:
        """Write the rows that end the snapshots of shapes, to be appended with the others; raises ``SinkError``."""
        rows = end_rows(ends, taken_at)
        try:
            return WrittenFile(self.write(rows, None, is_change=True))
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error

    def _schema(self) -> pa.Schema:
        return pa.schema(self._table.schema())

    def append_snapshot(self, files: Iterable[WrittenFile], ends: Mapping[ShapeKey, ShapeSnapshot]) -> None:
        """Add files with the rows of the snapshots of shapes, ``ends``, in one commit; durable when this returns.

        This neither claims the log nor respects a claim, so it is not for the rows of transactions.

        Raises:
            SinkError: the table cannot be written, or the log of a shape was folded past the snapshot.
        """
        actions = [file.action for file in files]

        def following(current: Mapping[ShapeKey, ShapeSnapshot]) -> Sequence[AddAction]:
            for (source, shape_id), snapshot in ends.items():
                if not snapshot.may_replace(current.get((source, shape_id))):
                    raise SinkError(
                        f"the log of shape {shape_id} of source {source} is folded up to transactions that the "
                        "snapshot does not contain, because they became visible later, or were committed later, or the "
                        "shape was begun again; take the snapshot again"
                    )
            return actions

        self._append_after_snapshots(ends.keys(), following)

    def mark_incarnations(self, begun: Mapping[ShapeKey, int], now: datetime) -> None:
        """Mark the start of these incarnations, unless the log has it already; durable when this returns.

        Raises:
            SinkError: the table cannot be written.
        """

        def following(current: Mapping[ShapeKey, ShapeSnapshot]) -> Sequence[AddAction]:
            ends = dict[ShapeKey, ShapeSnapshot]()
            for key, incarnation in begun.items():
                last = current.get(key)
                if last is None or last.incarnation < incarnation:
                    ends[key] = ShapeSnapshot.mark(1 if last is None else last.attempt + 1, incarnation)
            return [self.write_ends(ends, now).action] if ends else []

        self._append_after_snapshots(begun.keys(), following)

    def _append_after_snapshots(self, keys: Collection[ShapeKey], following: _Following) -> None:
        """Commit what ``following`` returns for the last snapshots of these shapes, provided that they still are the
        last.
        """
        shape_ids = ", ".join(sorted({literal(shape_id) for _, shape_id in keys}))
        for left in reversed(range(_ATTEMPTS)):
            refused = self._try_append(f"shape_id IN ({shape_ids})", following)
            if refused is None:
                return
            if not left:
                raise unwritable(self._table.table_uri, refused) from refused

    def _try_append(self, condition: str, following: _Following) -> CommitFailedError | None:
        """Commit once; return the error if upkeep folds, or deletes the log of a removed shape, at the same moment."""
        try:
            refresh(self._table)
            actions = following(last_snapshots(self._table, condition))
            if actions:
                self._commits.commit(self._table, actions, [self.next_snapshot()])
        except CommitFailedError as error:
            return error
        except (DeltaError, OSError) as error:
            raise unwritable(self._table.table_uri, error) from error
        return None

    def next_snapshot(self) -> Transaction:
        """The app transaction for a commit that adds snapshots or folds, given the table's open version."""
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
    """The files of each run, in row order."""
    runs: dict[int, list[LogFile]] = {}
    for file in sorted(files, key=lambda file: file.part or (0, 0)):
        if file.run is not None:
            runs.setdefault(file.run, []).append(file)
    return runs
