"""``parts_of``: a shape with subqueries as one part for each of its tables, each a plain definition.

A shape whose ``where`` has subqueries depends on several tables, and its log has rows of all of them. These are the
rows of its own table that satisfy the rest of its condition, and the rows of each other table that satisfy a subquery's
condition (:mod:`~flushtracker.shapes.where.subqueries`). Each part is routed, bound and copied like a separate shape.
There is one part per table, even if several subqueries and the shape itself read it. It has the rows and columns that
any of them needs.

Which of the rows the shape has at an offset is decided where its log is folded
(:mod:`~flushtracker.shapes.where.joined_condition`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from flushtracker.errors import ShapeError
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.where.case_mappings import CaseMappings
from flushtracker.shapes.where.subqueries import QueryText, has_subquery, split_condition
from flushtracker.wal.changes import TableName


@dataclass(frozen=True, slots=True)
class _Role:
    """What one condition needs of a table; ``columns`` is ``None`` for all.

    ``compared`` are the columns that decide, and ``mapped`` those whose case the condition maps.
    """

    table: TableName
    columns: frozenset[str] | None
    condition: str | None
    compared: frozenset[str]
    mapped: CaseMappings = frozenset()


def parts_of(definition: ShapeDefinition) -> tuple[ShapeDefinition, ...]:
    """The parts of a shape, that of its own table first; the definition itself if it has no subqueries.

    Raises:
        ShapeError: ``where`` cannot be parsed, or uses an unsupported construct.
    """
    if definition.where is None or definition.compared is not None or not has_subquery(definition.where):
        return (definition,)
    try:
        roles = list(_roles(definition, definition.where))
    except ShapeError as error:
        raise ShapeError(f"{definition.subject('where')}: {error}") from error
    if len(roles) == 1:
        return (definition,)
    tables = dict.fromkeys(role.table for role in roles)
    return tuple(_part(definition, table, [role for role in roles if role.table == table]) for table in tables)


def has_subqueries(definition: ShapeDefinition) -> bool:
    """Whether the shape depends on subqueries; raises as :func:`parts_of`."""
    return parts_of(definition)[0] is not definition


def whole_tables(definition: ShapeDefinition) -> tuple[TableName, ...]:
    """The tables whose rows are all in the log of a shape with subqueries, because no condition excludes any.

    Raises as :func:`parts_of`.
    """
    if not has_subqueries(definition):
        return ()
    return tuple(part.table for part in parts_of(definition) if part.where is None)


def tables_of(definition: ShapeDefinition) -> tuple[TableName, ...]:
    """The tables of a shape, its own first; only its own if the condition cannot be parsed."""
    try:
        return tuple(part.table for part in parts_of(definition))
    except ShapeError:
        return (definition.table,)


def queried_tables(definition: ShapeDefinition) -> tuple[TableName, ...]:
    """The tables that its subqueries read, possibly including its own; raises as :func:`parts_of`."""
    if definition.where is None or not has_subqueries(definition):
        return ()
    return tuple(dict.fromkeys(role.table for role in list(_roles(definition, definition.where))[1:]))


def rows_in_two_tables(table: TableName, other: TableName) -> str:
    """Why a shape cannot depend on a partition both directly and through its table: a row is in the log once."""
    name, other_name = ".".join(table), ".".join(other)
    return (
        f"{name} and {other_name} have the same rows, as one is a partition of the other, or both have the same "
        "partitions; name one table in both places, with a condition for the rows that are meant"
    )


def _roles(definition: ShapeDefinition, where: str) -> Iterator[_Role]:
    """The role of the shape's own table, then those of its subqueries' tables."""
    split = split_condition(where)
    columns = None if definition.columns is None else split.columns.union(definition.columns)
    yield _Role(definition.table, columns, split.rest, split.columns, split.mapped)
    for query in split.queries:
        yield from _roles_of(query)


def _roles_of(query: QueryText) -> Iterator[_Role]:
    selected = frozenset({query.column})
    if query.condition is None:
        yield _Role(query.table, selected, None, selected)
        return
    split = split_condition(query.condition)
    yield _Role(query.table, selected | split.columns, split.rest, selected | split.columns, split.mapped)
    for inner in split.queries:
        yield from _roles_of(inner)


def _part(definition: ShapeDefinition, table: TableName, roles: list[_Role]) -> ShapeDefinition:
    columns = frozenset[str]()
    for role in roles:
        columns |= role.columns or frozenset()
    conditions = [role.condition for role in roles if role.condition is not None]
    where = None
    if len(conditions) == len(roles):
        where = conditions[0] if len(roles) == 1 else " OR ".join(f"({condition}\n)" for condition in conditions)
    key, has_partitions = definition.primary_key, definition.keys_have_partitions
    is_own = table == definition.table
    if not is_own:
        inner = next((each for each in definition.inner_tables if each.table == table), InnerTable(table, 0, ()))
        key, has_partitions = inner.primary_key or None, inner.keys_have_partitions
    return replace(
        definition,
        table=table,
        columns=None if any(role.columns is None for role in roles) else tuple(sorted({*columns, *(key or ())})),
        where=where,
        primary_key=key,
        partitions=definition.partitions if is_own else (),
        keys_have_partitions=has_partitions,
        compared=frozenset().union(*(role.compared for role in roles)),
        mapped=frozenset().union(*(role.mapped for role in roles)),
    )
