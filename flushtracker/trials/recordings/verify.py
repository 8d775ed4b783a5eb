"""Compares the rows of shapes, folded from their logs, with their queries over a recording's tables."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from flushtracker.errors import DecodeError
from flushtracker.shape_log.table.reader import ShapeLogReader
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import has_subqueries
from flushtracker.shapes.where import parse_where
from flushtracker.trials.recordings.recording import RecordedMessage
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, TableName, Truncate, Update
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.pgoutput import decode

_SHOWN: Final = 200
"""The maximal length of an example, in characters."""

_Key: TypeAlias = tuple[str | None, ...]


class RecordedTables:
    """The tables at the end of a recording: its changes applied row by row, without shapes, logs or events.

    ``known`` tables that the recording does not change are empty; a subquery cannot read other unchanged tables.

    Raises ``DecodeError``, also if a table had rows before the recording began.
    """

    def __init__(
        self, frames: Iterable[RecordedMessage], known: Mapping[TableName, Relation] = MappingProxyType({})
    ) -> None:
        self._known = known
        self._rows: dict[TableName, dict[_Key, Row]] = defaultdict(dict)
        self._relations: dict[TableName, Relation] = {}
        converter = FragmentConverter()
        for frame in frames:
            for fragment in converter.handle(decode(frame.data)):
                for change in fragment.changes:
                    self._apply(change)

    def _apply(self, change: Change) -> None:
        relation = change.relation
        self._relations[relation.table] = relation
        rows = self._rows[relation.table]
        match change:
            case Truncate():
                rows.clear()
            case Insert():
                rows[_key(relation, change.new)] = change.new
            case Delete():
                _pop(rows, relation, change.old)
            case Update():
                old = _pop(rows, relation, change.old or change.new)
                # An update does not include large values that it leaves unchanged.
                new = {**old, **change.new}
                rows[_key(relation, new)] = new

    def rows_of(self, definition: ShapeDefinition) -> list[Row]:
        """Return the result of the shape's query."""
        if has_subqueries(definition):
            return self._joined_rows(definition)
        shape = Shape(definition)
        found: list[Row] = []
        for table in shape.tables:
            if table in self._relations:
                bound = shape.bind(self._relations[table])
                found += [
                    {name: row[name] for name in bound.columns}
                    for row in self._rows[table].values()
                    if bound.matches is None or bound.matches(row) is True
                ]
        return found

    def _joined_rows(self, definition: ShapeDefinition) -> list[Row]:
        """The same for a shape with subqueries; empty if no row of its table ever changed."""
        relation = self._relations.get(definition.table)
        if relation is None or definition.where is None:
            return []
        relations = {**self._known, **self._relations}
        condition = parse_where(definition.where).joined(definition.table, relations)
        for table in condition.inner_tables:
            for row in self._rows[table].values():
                condition.add(table, row)
        condition.settle()
        names = [column.name for column in relation.columns]
        chosen = names if definition.columns is None else {*definition.columns, *(definition.primary_key or ())}
        rows = (row for row in self._rows[definition.table].values() if condition.matches(row))
        return [{name: row[name] for name in names if name in chosen} for row in rows]


def differences(
    log: ShapeLogReader, shapes: Mapping[str, ShapeDefinition], table_rows: Callable[[ShapeDefinition], list[Row]]
) -> Iterator[tuple[str, int, str | None]]:
    """Yield each shape, its number of rows, and how its log differs from ``table_rows`` (``None`` if it does not).

    Raises:
        DecodeError: a log cannot be folded. ConfigError: the log has no such shape. SinkError: a table cannot be read.
    """
    for shape_id, definition in sorted(shapes.items()):
        expected = table_rows(definition)
        found = (row for batch in log.read_rows(shape_id).batches for row in batch.to_pylist())
        difference = row_difference(expected, found)
        yield shape_id, len(expected), None if difference is None else f"the log {difference}"


def row_difference(expected: list[Row], found: Iterable[Row]) -> str | None:
    """Say what ``found`` lacks, or has in addition, in the columns of ``expected``; ``None`` if that is nothing."""
    names = list(expected[0]) if expected else []
    wanted = Counter(tuple(row.get(name) for name in names) for row in expected)
    had = Counter(tuple(row.get(name) for name in names) for row in found)
    if not names:
        return f"has {had.total()} rows that the table does not have" if had else None
    for what, rows in (("lacks", wanted - had), ("has, and the table does not,", had - wanted)):
        if rows:
            example = dict(zip(names, min(rows, key=repr), strict=True))
            return f"{what} {rows.total()} rows, such as {str(example)[:_SHOWN]}"
    return None


def _pop(rows: dict[_Key, Row], relation: Relation, row: Row) -> Row:
    """Remove and return the row with the same key as ``row``."""
    try:
        return rows.pop(_key(relation, row))
    except KeyError:
        raise DecodeError(
            f"table {'.'.join(relation.table)} had rows before the recording began, which changes one of them; verify "
            "needs a recording that has all of its rows"
        ) from None


def _key(relation: Relation, row: Row) -> _Key:
    return tuple(row.get(name) for name in relation.key_columns)
