"""Reads shape logs without Spark: the log of one shape, or the rows that folding it gives.

Each read uses one version of the table, so it sees neither part of an append nor a duplicate row while the writer
appends and files are compacted. Of that version it reads only whole transactions: up to the shape's greatest
``commit`` row, and of a shape with a snapshot, the snapshot's rows and the transactions that it does not contain
(:mod:`flushtracker.delta.log.found_shape`).

Rows are sorted and folded a few thousand at a time (:mod:`flushtracker.delta.log.external_sort`,
:mod:`flushtracker.delta.log.fold_items`), so memory does not depend on how many there are. All of them have been read
and folded, and every error raised, when a read returns.

Values are PostgreSQL's text; ``typed`` columns have the types of :mod:`flushtracker.delta.log.column_types`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError

from flushtracker.delta.log.chosen_source import chosen_source
from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.external_sort import sort_tables
from flushtracker.delta.log.fold_items import ROW_ORDER
from flushtracker.delta.log.folded_shape import folded_rows
from flushtracker.delta.log.found_shape import FoundShape, require_readable
from flushtracker.delta.log.row_columns import RowColumns
from flushtracker.delta.log.shape_ends import ShapeEnd, ShapeEnds
from flushtracker.delta.log.table import open_shape_log, unreadable
from flushtracker.delta.registry_table import RegistryTable
from flushtracker.delta.storage import literal, query_batches, query_rows
from flushtracker.errors import ConfigError, PositionError
from flushtracker.events.registry import Registry
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.position import Position
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ShapeRead:
    """One shape, and how far it was read: the rows contain all of it up to ``bound``, and nothing after.

    They are ``batches`` of some thousand rows each, which can be taken once, and wait in temporary files if they are
    many; or ``rows``, one table of all of them in memory, instead of the batches.

    ``bound`` is ``(tx, ∞)`` of the last whole transaction. Before the first transaction it is ``(0, ∞)`` for a shape
    with a snapshot, else ``None``. ``position`` is from where a follower continues.
    """

    source: str
    shape_id: str
    batches: pa.RecordBatchReader
    bound: LogOffset | None
    position: Position

    @cached_property
    def rows(self) -> pa.Table:
        """All rows as one table, which takes the batches; raises ``SinkError``."""
        return self.batches.read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a pandas frame, which needs pandas."""
        frame: pd.DataFrame = self.rows.to_pandas()
        return frame


def read_shape_log(  # noqa: PLR0913  all but the first ones by name
    log: str,
    shape_id: str,
    after: Position | None = None,
    source: str | None = None,
    *,
    changes_only: bool = False,
    shapes: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    even_if_ended: bool = False,
) -> ShapeRead:
    """The log of a shape: all of its rows, or those ``after`` a position, of whole transactions, in offset order.

    ``log`` is the path or URI of the shape log, ``shapes`` that of the registry table, by default ``<log>_shapes`` if
    that exists. The rows have the columns of the shape log; rows ``commit`` are among them. ``source`` may be left out
    if the shape has only one, and with ``after``.

    The log of a shape with a snapshot begins with the snapshot: inserts and one row ``snapshot``, up to ``(0, ∞)``.
    Transactions that the snapshot contains are left out. With ``changes_only`` the log begins after those rows, and can
    be read before the snapshot has been taken. A reader that continues passes the ``position`` of its last read as
    ``after``.

    Raises:
        PositionError: changes after the position are missing from the log, since the shape's snapshot was taken again
            or the log is folded; the shape is to be read again from its beginning.
        ShapeEndedError: the shape was removed or has ended; ``even_if_ended`` reads it as long as its log exists.
        SnapshotMissingError: the log lacks its snapshot so far.
        ConfigError: there is no such shape, or it has several sources.
        SinkError: a table cannot be read.
    """
    reader = ShapeLogReader(log, shapes, storage_options)
    return reader.read_log(shape_id, after, source, changes_only=changes_only, even_if_ended=even_if_ended)


def read_shape(  # noqa: PLR0913  all but the first ones by name
    log: str,
    shape_id: str,
    at: LogOffset | None = None,
    source: str | None = None,
    *,
    typed: bool = False,
    shapes: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    even_if_ended: bool = False,
) -> ShapeRead:
    """The rows of a shape after all transactions up to ``at``, or up to the last, in the order of their inserts.

    The columns are those that the registry knows, otherwise those that the log names. A value is PostgreSQL's text;
    with ``typed`` it has the column's type, if :mod:`flushtracker.delta.log.column_types` has it. A transaction that
    continues after ``at`` is left out, because no client ever saw part of it. The rows of a shape with a snapshot are
    known from the moment of the snapshot on.

    Raises:
        DecodeError: folding the log does not give the shape's rows, or a value does not fit its type.
        ShapeEndedError, SnapshotMissingError, ConfigError, SinkError: as :func:`read_shape_log`; ``typed`` needs the
            registry table, and ``at`` must be within the log, and not before the snapshot.
    """
    reader = ShapeLogReader(log, shapes, storage_options)
    return reader.read_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)


class ShapeLogReader:
    """An open shape log with its registry table, if there is one. For one thread at a time, and many reads."""

    def __init__(self, log: str, shapes: str | None = None, storage_options: Mapping[str, str] | None = None) -> None:
        """Open the tables; raises ``SinkError``."""
        self._uri = log
        self._table = open_shape_log(log, storage_options)
        self._ends = ShapeEnds(self._table, storage_options)
        default = log.rstrip("/") + "_shapes"
        if shapes is None and RegistryTable.exists(default, storage_options):
            shapes = default
        self._registry = None if shapes is None else RegistryTable(shapes, storage_options)
        self._version_read = -1

    def has_changed(self) -> bool:
        """Whether one of the tables has another version than the last read had; raises ``SinkError``."""
        self._refresh()
        registry_changed = self._registry is not None and self._registry.has_changed()
        return registry_changed or self._table.version() != self._version_read

    def _refresh(self) -> None:
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise unreadable(self._uri, error) from error

    def read_log(
        self,
        shape_id: str,
        after: Position | None = None,
        source: str | None = None,
        *,
        changes_only: bool = False,
        even_if_ended: bool = False,
    ) -> ShapeRead:
        """See :func:`read_shape_log`."""
        shape = self.find_log(shape_id, after, source, changes_only=changes_only, even_if_ended=even_if_ended)
        if after is not None and not shape.has_more(after):
            rows: Iterator[pa.Table] = iter(())
        else:
            condition = f"{shape.condition} AND {shape.followed(after, changes_only=changes_only)}"
            query = f"SELECT {', '.join(SCHEMA.names)} FROM rows WHERE {condition}"  # noqa: S608  literals alone
            rows = self._sorted(query_batches(self._table, query))
        batches = _batches(SCHEMA, (table.cast(SCHEMA) for table in rows))
        return ShapeRead(shape.source, shape_id, batches, shape.bound, shape.position(after))

    def read_rows(
        self,
        shape_id: str,
        at: LogOffset | None = None,
        source: str | None = None,
        *,
        typed: bool = False,
        even_if_ended: bool = False,
    ) -> ShapeRead:
        """See :func:`read_shape`."""
        shape = self.find_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)
        columns = RowColumns(shape.columns, typed=typed)
        rows = self._sorted(map(columns.parse, folded_rows(self._table, shape)))
        batches = _batches(columns.schema, map(columns.unmarked, rows))
        return ShapeRead(shape.source, shape_id, batches, shape.bound, shape.position())

    def _sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows of all ``tables``, which have been read when this returns, in offset order."""
        found = sort_tables(tables, ROW_ORDER)
        try:
            first = next(found, None)
        except (DeltaError, OSError) as error:
            raise unreadable(self._uri, error) from error
        return iter(()) if first is None else chain([first], found)

    def find_log(
        self, shape_id: str, after: Position | None, source: str | None, *, changes_only: bool, even_if_ended: bool
    ) -> FoundShape:
        """The shape in the table's newest version, whose log can be read; raises as :func:`read_shape_log`."""
        if after is None:
            shape = self._find(shape_id, source, even_if_ended=even_if_ended)
            shape.require_begun()
            if not changes_only:
                shape.require_snapshot()
            return shape
        if source not in {None, after.source}:
            raise ConfigError(f"source is {source}, but position {after} is of source {after.source}; leave out source")
        shape = self._find(shape_id, source, after, even_if_ended=even_if_ended)
        shape.require_followed(after)
        if shape.has_more(after):
            self._require_complete(shape, after)
        return shape

    def _require_complete(self, shape: FoundShape, after: Position) -> None:
        """Raise ``PositionError`` if the log after ``after`` lacks transactions that the snapshot contains.

        Upkeep may have deleted their items, but not the ``commit`` row of the last one.
        """
        missed = shape.missed(after)
        commits = f"{shape.condition} AND operation = {literal(COMMIT)} AND {missed} LIMIT 1"
        if missed and len(self._query("tx_offset", commits)):
            raise PositionError(
                f"position {after}: a snapshot of {shape.name} was taken since, which has later transactions; read the "
                "shape again from its beginning"
            )

    def find_rows(
        self, shape_id: str, at: LogOffset | None, source: str | None, *, typed: bool, even_if_ended: bool
    ) -> FoundShape:
        """The shape in the table's newest version, with its bound, at most ``at``; raises as :func:`read_shape`."""
        shape = self._find(shape_id, source, even_if_ended=even_if_ended)
        shape.require_begun()
        shape.require_snapshot()
        if at is not None:
            shape.require_inside(at)
            last_commit = self._last_commit_at(shape, at)
            shape.require_state(at, last_commit)
            shape = replace(shape, last_commit=last_commit)
        if typed:
            shape.require_types()
        return shape

    def _find(
        self, shape_id: str, source: str | None, after: Position | None = None, *, even_if_ended: bool
    ) -> FoundShape:
        self._refresh()
        registry = Registry() if self._registry is None else self._registry.entries()
        self._version_read = self._table.version()
        try:
            ends = self._ends.of(shape_id, source, after)
        except (DeltaError, OSError) as error:
            raise unreadable(self._uri, error) from error
        known = ends.keys() | (registry.sources_of(shape_id) if source is None else set[str]())
        if source is not None and registry.shape(source, shape_id) is not None:
            known.add(source)
        source = chosen_source(self._uri, shape_id, source, known, after)
        entry = registry.shape(source, shape_id)
        if entry is not None and entry.removed_at is not None:
            require_readable(entry, even_if_ended=even_if_ended, has_log=source in ends)
        table = None if entry is None else registry.table_of(entry)
        had_snapshot = any(end.snapshot is not None for name, end in ends.items() if name != source)
        return FoundShape(
            *(self._version_read, source, shape_id, *ends.get(source, ShapeEnd()), entry, table),
            had_snapshot=had_snapshot,
        )

    def _last_commit_at(self, shape: FoundShape, at: LogOffset) -> int | None:
        """The last transaction all of whose items are at or before ``at``."""
        tx, op = at
        later = f"tx_offset = {tx:d} AND op_offset > {op:d} AND operation <> {literal(COMMIT)} LIMIT 1"
        continues = op < OP_INFINITY and len(self._query("op_offset", f"{shape.condition} AND {later}")) > 0
        upto = f"tx_offset {'<' if continues else '<='} {tx:d}"
        commits = f"{shape.condition} AND operation = {literal(COMMIT)} AND {upto}"
        found: int | None = self._query("MAX(tx_offset) AS last", commits)["last"][0].as_py()
        return found

    def _query(self, selected: str, condition: str) -> pa.Table:
        try:
            return query_rows(self._table, f"SELECT {selected} FROM rows WHERE {condition}")  # noqa: S608  literals alone
        except (DeltaError, OSError) as error:
            raise unreadable(self._uri, error) from error


def _batches(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.to_batches()))
