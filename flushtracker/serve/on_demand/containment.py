"""Finds the parent of a definition: a live shape of its table that has all of its rows, and all columns that it needs.

A shape has all rows if it has no condition, or if each part of its condition, as joined by AND, is a part of the
definition's. Parts are compared by their canonical forms; no part implies a different one.

If several shapes qualify, the parent is the one with the most parts, and so the fewest rows, then the one with the
least id. Only the registry decides, so every server finds the same parent. It changes with the registry, and clients
then begin again.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from flushtracker.errors import ShapeError, listed
from flushtracker.events.registry_events import BEGUN_AGAIN, ShapeEntry
from flushtracker.serve.on_demand.selection import Parent, Selection
from flushtracker.serve.refusals import BadRequestError, RefusalError
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.shape_schema import shape_key
from flushtracker.shapes.table_binding import Filter, TableBinding, dotted, unkept_reason
from flushtracker.shapes.where import Where
from flushtracker.shapes.where.canonical import Form
from flushtracker.wal.changes import TableName
from flushtracker.wal.names import LOG_WRITER

Known = tuple[TableBinding, Collection[tuple[ShapeEntry, Form | None]]]
"""A table, and the shapes that have it so, each with the canonical form of its condition."""


@dataclass(frozen=True, slots=True)
class AskedDefinition:
    """A definition by its parts; ``columns`` is ``None`` for all."""

    table: TableName
    where: Where | None
    columns: frozenset[str] | None
    replica: str


def selection_of(asked: AskedDefinition, known: Iterable[Known]) -> Selection:
    """What the definition shows of its parent, one of the ``known`` shapes of its table.

    Its condition is read once for each of the ``known``, however many shapes these have.

    Raises:
        BadRequestError: the definition does not fit the table, has subqueries, or several sources have a parent.
        RefusalError: no shape contains it.
    """
    shapes = [(table, [each for each in found if _is_readable(each[0])]) for table, found in known]
    try:
        found = sorted(_parents(asked, shapes), key=lambda each: (-each[0], each[1].entry.definition.id))
    except ShapeError as error:
        raise BadRequestError(str(error)) from error
    if not found:
        raise _none_contains(asked, [entry for _, entries in shapes for entry, _ in entries])
    if len({parent.entry.source for _, parent in found}) > 1:
        raise BadRequestError("the definition is ambiguous: shapes of several sources contain it")
    return _selection(asked, found[0][1])


def _is_readable(entry: ShapeEntry) -> bool:
    """Whether the shape has all rows of its query, or will have them again."""
    definition = entry.definition
    is_live = entry.removed_at is None or entry.ended_because == BEGUN_AGAIN
    return is_live and definition.snapshot is True and definition.writer == LOG_WRITER and not definition.inner_tables


def _parents(asked: AskedDefinition, shapes: Iterable[Known]) -> Iterator[tuple[int, Parent]]:
    """The shapes that contain the definition, each with the number of parts of its condition."""
    for table, entries in shapes:
        if not entries:
            continue
        wanted = frozenset(_parts(None if asked.where is None else asked.where.canonical(relation_of(table))))
        for entry, condition in entries:
            parts = _parts(condition)
            if _has_columns(asked, entry, table) and all(part in wanted for part in parts):
                yield len(parts), Parent(entry, table)


def _has_columns(asked: AskedDefinition, entry: ShapeEntry, table: TableBinding) -> bool:
    if entry.definition.columns is None:
        return True
    has = {*entry.definition.columns, *shape_key(entry.definition, table)}
    read = frozenset[str]() if asked.where is None else asked.where.columns
    return asked.columns is not None and asked.columns | read <= has


def _parts(condition: Form | None) -> Form:
    """The parts of a condition's canonical form, as joined by AND."""
    if condition is None:
        return ()
    return condition[1:] if condition[0] == "AND" else (condition,)


def _selection(asked: AskedDefinition, parent: Parent) -> Selection:
    table, where = parent.table, asked.where
    key = shape_key(parent.entry.definition, table)
    names = [column.name for column in table.columns]
    missing = sorted((asked.columns or frozenset()) - set(names))
    if missing:
        raise BadRequestError(f"table {dotted(table.table)} has no column {listed(missing)}; it has {listed(names)}")
    try:
        matches = None if where is None else where.bind(relation_of(table))
    except ShapeError as error:
        raise BadRequestError(str(error)) from error
    if where is not None:
        require_own_rules(where, table, key)
    # The columns always include the key, whether or not it is named.
    chosen = None if asked.columns is None else asked.columns.union(key)
    form = None if where is None else where.canonical(relation_of(table))
    return Selection.of(parent, form, matches, chosen, asked.replica)


def require_own_rules(where: Where, table: TableBinding, key: Collection[str]) -> None:
    """Raise ``BadRequestError`` if the server judges rows of the table by other rules, because of a collation."""
    if reason := unkept_reason((), table, table, key, Filter(where.columns, where.case_mappings)):
        raise BadRequestError(reason)


def _none_contains(asked: AskedDefinition, shapes: Iterable[ShapeEntry]) -> RefusalError:
    table = dotted(asked.table)
    ids = sorted(entry.definition.id for entry in shapes)
    if not ids:
        return RefusalError(404, f"there is no live shape of {table} with all of its rows, of which others are taken")
    return RefusalError(
        404,
        f"no live shape of {table} has all rows and columns that this definition needs; add one without a condition, "
        "or with parts of this one's",
    )
