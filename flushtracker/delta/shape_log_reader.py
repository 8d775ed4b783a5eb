"""Reads shape logs without Spark: the log of one shape, or the rows that folding it gives.

Each read uses one version of the table, so that it sees neither part of an append nor a row twice while the writer
appends and files are compacted. Of that version it reads whole transactions only: up to the shape's greatest
``commit`` row.

Values are PostgreSQL's text. ``typed`` columns are those of :mod:`flushtracker.delta.column_types`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake.exceptions import DeltaError

from flushtracker.delta.column_types import typed_column
from flushtracker.delta.registry_table import Registry, RegistryTable
from flushtracker.delta.shape_log import SCHEMA, open_shape_log, unreadable
from flushtracker.delta.storage import literal, query_rows
from flushtracker.errors import ConfigError, ShapeEndedError
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset
from flushtracker.writing.fold import Item, fold
from flushtracker.writing.log_row import COMMIT

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class ShapeRead:
    """What was read of one shape, and how far: ``rows`` contain all of it up to ``bound``, and nothing after.

    ``bound`` is ``(tx, ∞)`` of the last whole transaction, from where a follower continues; ``None`` before the first.
    """

    source: str
    shape_id: str
    rows: pa.Table
    bound: LogOffset | None

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a pandas frame, which needs pandas."""
        frame: pd.DataFrame = self.rows.to_pandas()
        return frame


def read_shape_log(  # noqa: PLR0913  all but the first ones by name
    log: str,
    shape_id: str,
    after: LogOffset | None = None,
    source: str | None = None,
    *,
    shapes: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    even_if_ended: bool = False,
) -> ShapeRead:
    """The log of a shape: its rows after ``after``, or all of them, of whole transactions, in offset order.

    ``log`` is the path or URI of the shape log, ``shapes`` that of the registry table, by default ``<log>_shapes`` if
    that exists. The rows have the columns of the shape log; rows ``commit`` are among them. ``source`` may be left out
    if the shape has only one. All rows are held in memory.

    Raises:
        ShapeEndedError: the shape was removed or has ended; ``even_if_ended`` reads it as long as its log exists.
        ConfigError: there is no such shape, it has several sources, or ``after`` is not within its log.
        SinkError: a table cannot be read.
    """
    reader = ShapeLogReader(log, shapes, storage_options)
    return reader.read_log(shape_id, after, source, even_if_ended=even_if_ended)


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
    with ``typed`` it has the column's type, as far as :mod:`flushtracker.delta.column_types` knows it. A transaction
    that continues after ``at`` is left out, because nobody ever saw part of it.

    Raises:
        DecodeError: folding the log does not give the shape's rows, or a value does not fit its type.
        ShapeEndedError, ConfigError, SinkError: as :func:`read_shape_log`; ``typed`` needs the registry table.
    """
    reader = ShapeLogReader(log, shapes, storage_options)
    return reader.read_rows(shape_id, at, source, typed=typed, even_if_ended=even_if_ended)


class ShapeLogReader:
    """An open shape log with its registry table, if there is one. For one thread at a time, and many reads."""

    def __init__(self, log: str, shapes: str | None = None, storage_options: Mapping[str, str] | None = None) -> None:
        """Open the tables; raises ``SinkError``."""
        self._uri = log
        self._table = open_shape_log(log, storage_options)
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
        self, shape_id: str, after: LogOffset | None = None, source: str | None = None, *, even_if_ended: bool = False
    ) -> ShapeRead:
        """See :func:`read_shape_log`."""
        shape = self.find(shape_id, source, even_if_ended=even_if_ended)
        if after is not None:
            shape.require_inside(after, "after")
        condition = f"{shape.condition} AND tx_offset <= {shape.last_tx:d}"
        if after is not None:
            tx, op = after
            condition += f" AND tx_offset >= {tx:d} AND (tx_offset > {tx:d} OR op_offset > {op:d})"
        rows = self._rows(SCHEMA.names, condition)
        return ShapeRead(shape.source, shape_id, rows, shape.bound)

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
        shape = self.find(shape_id, source, at, even_if_ended=even_if_ended)
        if typed:
            shape.require_types()
        condition = f"{shape.condition} AND tx_offset <= {shape.last_tx:d} AND operation <> {literal(COMMIT)}"
        items = self._rows(["operation", "key", "value"], condition)
        rows = list(fold(_items(items)).values())
        types = shape.columns
        names = dict.fromkeys([*types, *(name for row in rows for name in row)])
        columns = {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}
        if typed:
            columns = {
                name: typed_column(name, texts, types[name]) if name in types else texts
                for name, texts in columns.items()
            }
        return ShapeRead(shape.source, shape_id, pa.table(columns), shape.bound)

    def _rows(self, names: Sequence[str], condition: str) -> pa.Table:
        """These columns of the rows for which ``condition`` is true, in offset order."""
        query = f"SELECT {', '.join(names)} FROM rows WHERE {condition} ORDER BY tx_offset, op_offset"  # noqa: S608
        try:
            return query_rows(self._table, query)
        except (DeltaError, OSError) as error:
            raise unreadable(self._uri, error) from error

    def find(
        self, shape_id: str, source: str | None, at: LogOffset | None = None, *, even_if_ended: bool
    ) -> "FoundShape":
        """The shape in the table's newest version, with its bound, at most ``at``; raises as :func:`read_shape`."""
        self._refresh()
        registry = Registry({}) if self._registry is None else self._registry.entries()
        self._version_read = self._table.version()
        bounds = self._last_commits(shape_id, source)
        known = {each for each in registry.sources_of(shape_id) | bounds.keys() if source in {None, each}}
        if not known:
            of = "" if source is None else f" of source {source}"
            raise ConfigError(
                f"shape log {self._uri} has no shape {shape_id}{of}; check its id, and whether it is written"
            )
        if len(known) > 1:
            raise ConfigError(f"shape {shape_id} has the sources {', '.join(sorted(known))}; name one as source")
        (source,) = known
        entry = registry.shape(source, shape_id)
        if entry is not None and entry.removed_at is not None:
            _require_readable(entry, even_if_ended=even_if_ended, has_log=source in bounds)
        table = None if entry is None else registry.table_of(entry)
        shape = FoundShape(self._version_read, source, shape_id, bounds.get(source), entry, table)
        if at is None:
            return shape
        shape.require_inside(at, "at")
        return replace(shape, last_commit=self._last_commit_at(shape, at))

    def _last_commits(self, shape_id: str, source: str | None) -> dict[str, int | None]:
        """The last whole transaction of each source that has rows of the shape."""
        condition = f"shape_id = {literal(shape_id)}"
        if source is not None:
            condition += f" AND source = {literal(source)}"
        query = (
            f"SELECT source, MAX(CASE WHEN operation = {literal(COMMIT)} THEN tx_offset END) AS last "  # noqa: S608
            f"FROM rows WHERE {condition} GROUP BY source"
        )
        try:
            found = query_rows(self._table, query).to_pylist()
        except (DeltaError, OSError) as error:
            raise unreadable(self._uri, error) from error
        return {row["source"]: row["last"] for row in found}

    def _last_commit_at(self, shape: "FoundShape", at: LogOffset) -> int | None:
        """The last transaction all of whose items are at or before ``at``."""
        tx, op = at
        commits = self._rows(
            ["tx_offset"], f"{shape.condition} AND operation = {literal(COMMIT)} AND tx_offset <= {tx:d}"
        )
        found: list[int] = commits["tx_offset"].to_pylist()
        if found and found[-1] == tx and op < OP_INFINITY:
            later = f"tx_offset = {tx:d} AND op_offset > {op:d} AND operation <> {literal(COMMIT)}"
            if self._rows(["op_offset"], f"{shape.condition} AND {later}"):
                del found[-1]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class FoundShape:
    """A shape in one ``version`` of the shape log; ``last_commit``: its last transaction that may be read."""

    version: int
    source: str
    shape_id: str
    last_commit: int | None
    entry: ShapeEntry | None
    table: TableBinding | None

    @property
    def name(self) -> str:
        return f"shape {self.shape_id} of source {self.source}"

    @property
    def condition(self) -> str:
        return f"shape_id = {literal(self.shape_id)} AND source = {literal(self.source)}"

    @property
    def last_tx(self) -> int:
        return -1 if self.last_commit is None else self.last_commit

    @property
    def bound(self) -> LogOffset | None:
        return None if self.last_commit is None else LogOffset.last_of(self.last_commit)

    @property
    def columns(self) -> dict[str, ColumnBinding]:
        """The shape's columns in the table's order, as far as the registry knows them."""
        if self.table is None or self.entry is None:
            return {}
        definition = self.entry.definition
        chosen = {*(definition.columns or ()), *(definition.primary_key or self.table.key)}
        return {
            column.name: column for column in self.table.columns if definition.columns is None or column.name in chosen
        }

    def require_types(self) -> None:
        """Raise ``ConfigError`` if the types of the shape's columns are not known."""
        if self.table is None:
            raise ConfigError(
                f"the types of {self.name} are not known: there is no registry table with its table; name it with "
                "shapes, or leave out typed"
            )

    def require_inside(self, offset: LogOffset, argument: str) -> None:
        """Raise ``ConfigError`` if the log does not reach ``offset``, or starts after it."""
        starts_after = None if self.entry is None else self.entry.starts_after
        if starts_after is not None and offset < starts_after:
            raise ConfigError(
                f"{argument} is {offset}, but the log of {self.name} starts after {starts_after}; name that or a later "
                "offset, or none"
            )
        ends = [each for each in (self.bound, starts_after) if each is not None]
        if not ends or offset > max(ends):
            reached = f"only reaches {max(ends)}" if ends else "has no whole transaction yet"
            raise ConfigError(f"{argument} is {offset}, but the log of {self.name} {reached}; read it again later")


def _require_readable(entry: ShapeEntry, *, even_if_ended: bool, has_log: bool) -> None:
    """Raise ``ShapeEndedError`` for a shape that is no longer written, unless the caller wants to read what is left."""
    how = "was removed by its owner" if entry.ended_because is None else f"has ended because {entry.ended_because}"
    what = f"shape {entry.definition.id} of source {entry.source} {how}, at {entry.removed_at}"
    if not has_log:
        raise ShapeEndedError(f"{what}, and its log has no rows (any more)")
    if not even_if_ended:
        raise ShapeEndedError(f"{what}; its log is still there, and can be read if that is asked for")


def _items(rows: pa.Table) -> Iterator[Item]:
    for batch in rows.select(["operation", "key", "value"]).to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
