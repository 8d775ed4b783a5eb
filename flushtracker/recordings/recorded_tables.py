"""The tables of a recording at its end: its changes applied row by row, without shapes, logs or events."""

from collections import defaultdict
from collections.abc import Iterable

from flushtracker.errors import DecodeError
from flushtracker.recordings.recording import RecordedMessage
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, TableName, Truncate, Update
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.pgoutput import decode


class RecordedTables:
    """Every table that ``frames`` mention, which were empty before; raises ``DecodeError``."""

    def __init__(self, frames: Iterable[RecordedMessage]) -> None:
        self._rows: dict[TableName, dict[tuple[str | None, ...], Row]] = defaultdict(dict)
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
                # A large value that the update leaves unchanged is not sent.
                new = {**old, **change.new}
                rows[_key(relation, new)] = new

    def rows_of(self, definition: ShapeDefinition) -> list[Row]:
        """The rows of the shape's query over its table."""
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


def _pop(rows: dict[tuple[str | None, ...], Row], relation: Relation, row: Row) -> Row:
    """Take the row with the key of ``row`` away."""
    try:
        return rows.pop(_key(relation, row))
    except KeyError:
        raise DecodeError(
            f"table {'.'.join(relation.table)} had rows before the recording began, which changes one of them; verify "
            "needs a recording that has all of its rows"
        ) from None


def _key(relation: Relation, row: Row) -> tuple[str | None, ...]:
    return tuple(row.get(name) for name in relation.key_columns)
