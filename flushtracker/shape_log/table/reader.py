"""Reads shape logs without Spark: the log of one shape, or its rows, by folding the log.

Each read uses one version of the table, so it sees neither part of an append nor a duplicate row while the writer
appends and files are compacted. It reads only that version's whole transactions, up to the shape's greatest ``commit``
row. With a snapshot, it reads the snapshot's rows and the transactions that it does not contain
(:mod:`flushtracker.shape_log.table.found_shape`).

Rows are sorted and folded a few thousand at a time (:mod:`flushtracker.shape_log.table.external_sort`,
:mod:`flushtracker.shape_log.table.fold_items`), so memory does not depend on how many there are. When a read returns,
everything has been read and folded; after that, only temporary files can fail.

Values are PostgreSQL's text; ``typed`` columns have the types of :mod:`flushtracker.shape_log.table.arrow_types`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError

from flushtracker.delta.storage import query_batches
from flushtracker.errors import ConfigError
from flushtracker.shape_log.position import Position
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.cut_finder import find_cut
from flushtracker.shape_log.table.difference import difference_rows
from flushtracker.shape_log.table.external_sort import sort_tables
from flushtracker.shape_log.table.fold_items import ROW_ORDER
from flushtracker.shape_log.table.followed_log import FollowedLog
from flushtracker.shape_log.table.found_shape import FoundShape, not_followed
from flushtracker.shape_log.table.joined_rows import joined_shape_rows
from flushtracker.shape_log.table.log_table import unreadable
from flushtracker.shape_log.table.shape_finder import ShapeFinder
from flushtracker.shape_log.table.value_columns import ValueColumns
from flushtracker.wal.log_offset import LogOffset

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ShapeRead:
    """One shape, and how far it was read: the rows contain all of it up to ``bound``, and nothing after.

    Only the rows of a snapshot may temporarily be ahead of the log and contain transactions after ``bound``.

    Use either ``batches`` of some thousand rows each, which can be read once and are kept in temporary files if there
    are many, or ``rows``, one table in memory.

    ``bound`` is ``(tx, ∞)`` of the last whole transaction, or of a difference. Before the first transaction it is the
    start of a resynced shape, ``(0, ∞)`` for any other with a snapshot, else ``None``. ``reached`` is the same as a
    position. ``has_subqueries``: these are the rows of a shape with subqueries, whose log also has others.
    """

    source: str
    shape_id: str
    batches: pa.RecordBatchReader
    bound: LogOffset | None
    reached: Position
    has_subqueries: bool = False

    @property
    def position(self) -> Position:
        """Where a follower continues; store it atomically with the rows.

        Raises:
            PositionError: these are the rows of a shape with subqueries, whose log cannot be followed from rows.
        """
        if self.has_subqueries:
            raise not_followed(self.shape_id)
        return self.reached

    @cached_property
    def rows(self) -> pa.Table:
        """All rows as one table; consumes the batches; raises ``SinkError``."""
        return self.batches.read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a pandas frame; requires pandas."""
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
    """The log of a shape: its rows of whole transactions, all or those ``after`` a position, in offset order.

    ``log`` is the path or URI of the shape log, ``shapes`` that of the registry table, by default ``<log>_shapes`` if
    that exists. The rows have the columns of the shape log; they include ``commit`` rows. ``source`` may be omitted if
    the shape has only one, and with ``after``.

    The log of a shape with a snapshot begins with the snapshot: inserts and one row ``snapshot``, up to ``(0, ∞)``.
    Transactions that the snapshot contains are left out. With ``changes_only`` the log begins after those rows, and can
    be read before the snapshot has been taken. A reader that continues passes the ``position`` of its last read as
    ``after``.

    If another snapshot has replaced the follower's since, the rows are only the difference, as one transaction with the
    xid 0 (:mod:`flushtracker.shape_log.table.difference`). That happens when the shape was resynced, perhaps under a
    new source, or its snapshot was taken again. Another read continues after it. A follower that started with
    ``changes_only`` never gets a difference, but every change since, or a ``PositionError``.

    Raises:
        PositionError: the log no longer has what the position needs, because it was folded or deleted; read the shape
            again from its beginning.
        ShapeEndedError: the shape was removed or has ended; ``even_if_ended`` reads it as long as its log exists.
        SnapshotMissingError: the log lacks its snapshot so far. A follower continues with the same position later.
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
    """The rows of a shape after all transactions up to ``at``, or up to the last one, in the order of their inserts.

    The columns are those in the registry, otherwise those in the log. A value is PostgreSQL's text; with ``typed`` it
    has the column's type, if :mod:`flushtracker.shape_log.table.arrow_types` has it. A transaction that continues
    after ``at`` is omitted, because no client ever saw part of it. With a snapshot, the rows are known from the moment
    of the first snapshot that the log still has. The rows of a shape with subqueries have no position to continue from:
    read its log from its beginning.

    Raises:
        DecodeError: folding the log does not give the shape's rows, or a value does not fit its type.
        ShapeEndedError, SnapshotMissingError, ConfigError, SinkError: as :func:`read_shape_log`; ``typed`` needs the
            registry table, and ``at`` must be within the log, and covered by a snapshot that it still has.
    """
    reader = ShapeLogReader(log, shapes, storage_options)
    return reader.read_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)


@dataclass(frozen=True)
class ShapesRead:
    """Several shapes of one source as of one moment: ``shapes`` has the rows of each, in the requested order.

    They are the rows after exactly the transactions up to ``lsn``, the source's cut. A shape's own ``bound`` is its
    last transaction among these; its ``position`` is where a follower of that shape continues.
    """

    source: str
    lsn: int
    shapes: Mapping[str, ShapeRead]


def read_shapes(
    log: str,
    shape_ids: Iterable[str],
    source: str | None = None,
    *,
    typed: bool = False,
    shapes: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShapesRead:
    """The rows of several shapes of one source, all as of the same transaction of the database.

    That is the last cut written by the writers' job, which requires its setting ``acks``. The other arguments are as
    for :func:`read_shape`; the registry table is required.

    Raises:
        CutMissingError: there is no cut yet, or a shape's snapshot, fold or start is later than the last one. Retry in
            a moment.
        ShapeEndedError, SnapshotMissingError, ConfigError, SinkError, DecodeError: as :func:`read_shape`, of any of the
            shapes; ``ConfigError`` also if they are of several sources, or the registry table lacks one.
    """
    named = [shape_ids] if isinstance(shape_ids, str) else list(shape_ids)
    return ShapeLogReader(log, shapes, storage_options).read_cut(named, source, typed=typed)


class ShapeLogReader:
    """An open shape log with its registry table, if there is one. For one thread at a time, and many reads."""

    def __init__(self, log: str, shapes: str | None = None, storage_options: Mapping[str, str] | None = None) -> None:
        self._finder = ShapeFinder(log, shapes, storage_options)

    @property
    def finder(self) -> ShapeFinder:
        """Keeps the tables open; its last results can be read here."""
        return self._finder

    def has_changed(self) -> bool:
        """Whether a table has another version than in the last read; raises ``SinkError``."""
        return self._finder.has_changed()

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
        found = self._finder.find_log(shape_id, after, source, changes_only=changes_only, even_if_ended=even_if_ended)
        batches = _batches(SCHEMA, self.log_tables(found))
        return ShapeRead(found.shape.source, shape_id, batches, found.bound, found.position)

    def log_tables(self, found: FollowedLog, check: Callable[[], None] | None = None) -> Iterator[pa.Table]:
        """The rows of a log that the finder has just found, in tables of some thousand rows.

        ``check`` is called for each table that is read; its errors abort the read.
        """
        shape, table = found.shape, self._finder.table
        rows: Iterator[pa.Table] = iter(())
        if found.difference is not None:
            taken_at = self._finder.taken_at(found.difference)
            rows = self._begun(difference_rows(table, found.difference, taken_at))
        elif found.may_have_rows:
            condition = f"{shape.condition} AND {found.condition}"
            query = f"SELECT {', '.join(SCHEMA.names)} FROM rows WHERE {condition}"  # noqa: S608  literals alone
            rows = self._sorted(_checked(query_batches(table, query), check))
        return (table.cast(SCHEMA) for table in rows)

    def row_tables(self, shape: FoundShape, check: Callable[[], None] | None = None) -> Iterator[pa.Table]:
        """The rows of a shape that the finder has just found, as inserts, in tables of some thousand rows.

        The columns are those of :mod:`flushtracker.shape_log.table.fold_items`, in the order of ``ROW_ORDER``.
        ``check`` is as for :meth:`log_tables`.
        """
        return self._sorted(_checked(joined_shape_rows(self._finder.table, shape, check), check))

    def read_rows(
        self,
        shape_id: str,
        at: LogOffset | None = None,
        source: str | None = None,
        *,
        typed: bool = False,
        even_if_ended: bool = False,
        before: ShapeRead | None = None,
    ) -> ShapeRead:
        """See :func:`read_shape`; returns ``before`` itself if nothing has been written to the shape since that
        read.
        """
        found = self._finder.find_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)
        if before is not None and before.position == found.position():
            return before
        return self._rows(found, typed)

    def read_cut(self, shape_ids: Sequence[str], source: str | None = None, *, typed: bool = False) -> ShapesRead:
        """See :func:`read_shapes`."""
        if not shape_ids:
            raise ConfigError("no shapes are named; name at least one")
        if len({*shape_ids}) < len(shape_ids):
            raise ConfigError("a shape is named twice; name each once")
        lsn, found = find_cut(self._finder, shape_ids, source, typed=typed)
        return ShapesRead(found[0].source, lsn, {shape.shape_id: self._rows(shape, typed) for shape in found})

    def _rows(self, shape: FoundShape, typed: bool) -> ShapeRead:  # noqa: FBT001  passed on
        columns = ValueColumns(shape.columns, typed=typed)
        rows = self._sorted(map(columns.parse, joined_shape_rows(self._finder.table, shape)))
        batches = _batches(columns.schema, map(columns.unmarked, rows))
        return ShapeRead(shape.source, shape.shape_id, batches, shape.bound, shape.position(), shape.has_subqueries)

    def _sorted(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The rows of all ``tables``, sorted by offset; they have been read when this returns."""
        return self._begun(sort_tables(tables, ROW_ORDER))

    def _begun(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The same tables; the first one has been computed when this returns."""
        try:
            first = next(tables, None)
        except (DeltaError, OSError) as error:
            raise unreadable(self._finder.uri, error) from error
        return iter(()) if first is None else chain([first], tables)


def _checked(tables: Iterable[pa.Table], check: Callable[[], None] | None) -> Iterator[pa.Table]:
    for table in tables:
        if check is not None:
            check()
        yield table


def _batches(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.to_batches()))
