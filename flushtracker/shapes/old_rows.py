"""The columns that shapes must know of old rows: those of their keys, and those that their conditions read."""

from collections import defaultdict
from collections.abc import Iterable

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import parts_of
from flushtracker.shapes.table_binding import TableBinding


def old_columns(resolved: Iterable[tuple[ShapeDefinition, TableBinding]]) -> dict[int, frozenset[str]]:
    """The columns by table OID; each definition is complete, and is paired with each of its tables."""
    found = defaultdict[int, frozenset[str]](frozenset)
    for definition, table in resolved:
        for part in parts_of(definition):
            if part.table == table.table:
                found[table.oid] |= Shape(part).old_columns
    return dict(found)


def lacked_by_new_partitions(definition: ShapeDefinition, table: TableBinding) -> tuple[str, ...]:
    """The columns that a shape needs and that old rows of a new partition lack, until it gets another replica identity.

    PostgreSQL creates partitions with REPLICA IDENTITY DEFAULT (the primary key, if any), whatever the table or its
    other partitions have.
    """
    if not table.is_partitioned:
        return ()
    primary = next((key.columns for key in table.keys if key.is_primary), ())
    return tuple(sorted(old_columns([(definition, table)])[table.oid] - set(primary)))


def new_partitions_note(table: TableBinding, lacked: Iterable[str]) -> str:
    """A note on what the table's next partition does to a shape."""
    name = ".".join(table.table)
    fact = f"a new partition of {name} has REPLICA IDENTITY DEFAULT, whatever the others have"
    effect = f"without {', '.join(lacked)} in it, the partition's first UPDATE or DELETE ends the shape"
    return f"{fact}; {effect}: set it at once, as the event trigger of docs/configuration.md does"
