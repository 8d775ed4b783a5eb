"""Converts table bindings to the relations that conditions are bound to."""

from collections.abc import Iterable

from flushtracker.shapes.table_binding import TableBinding
from flushtracker.shapes.type_binding import user_types
from flushtracker.wal.changes import Column, Relation, TableName, UserType


def relation_of(table: TableBinding) -> Relation:
    """The table's columns with their types; a binding does not have the replica identity."""
    columns = tuple(Column(column.name, column.type_oid) for column in table.columns)
    return Relation(table.oid, *table.table, "default", columns).with_types(user_types(table.types))


def relations_of(tables: Iterable[TableBinding]) -> dict[TableName, Relation]:
    """Relations whose columns are compared with each other: each type is the same in all of them.

    Tables are bound one by one, so one may lack labels that were added to an enum since. Labels are only ever added, so
    the type with the most labels is the newest.
    """
    tables, types = tuple(tables), dict[int, UserType]()
    for table in tables:
        for oid, found in user_types(table.types).items():
            if oid not in types or _label_count(found) > _label_count(types[oid]):
                types[oid] = found
    return {table.table: relation_of(table).with_types(types) for table in tables}


def _label_count(user_type: UserType) -> int:
    return 0 if user_type.enum is None else len(user_type.enum.labels)
