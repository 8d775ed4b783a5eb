"""Completes the definitions of new shapes from the catalog, and refuses those that cannot be kept.

There may be many thousands, on a few tables: the catalog is read once for all of them, by a fixed number of queries.
Shapes of one form (:attr:`~flushtracker.shapes.shape.Shape.form`) can all be kept on a table or none can, apart from
their literals, so one of them is bound, and of the others only the literals are read.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Final

from psycopg2.extensions import quote_ident

from flushtracker.errors import PostgresError, ShapeError
from flushtracker.postgres.catalog import Catalog, TableFacts
from flushtracker.postgres.connection import Connection, one_snapshot
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import TableBinding, publication_reason, reason_to_end
from flushtracker.shapes.type_binding import user_types
from flushtracker.wal.changes import TableName

_UNFLAGGED: Final = {"full", "nothing"}
"""Replica identities under which the columns' flags do not show the key."""


def resolve_shapes(
    connection: Connection, publication: str, definitions: Sequence[ShapeDefinition]
) -> list[tuple[ShapeDefinition, TableBinding]]:
    """Each definition, completed, with its table; raises as ``ServerTables.resolve`` does."""
    with one_snapshot(connection):
        facts = Catalog(connection).tables({definition.table for definition in definitions})
        bindings = read_bindings(connection, publication, [table.oid for table in facts.values()])
    tables = {
        name: _Table(found, bindings[found.oid], _command(connection, publication, name))
        for name, found in facts.items()
        if found.oid in bindings
    }
    resolved = []
    for definition in definitions:
        table = tables.get(definition.table)
        if table is None:
            dotted = ".".join(definition.table)
            raise ShapeError(f"shape {definition.id!r}: there is no table {dotted} in this database")
        resolved.append((table.completed(definition), table.binding))
    return resolved


class _Table:
    """A table that shapes are added on; ``command`` adds it to the publication."""

    def __init__(self, facts: TableFacts, binding: TableBinding, command: str) -> None:
        self.binding = binding
        self._primary_key = facts.primary_key
        self._partitions = tuple(partition.relation.table for partition in facts.partitions)
        relations = [partition.relation for partition in facts.partitions] or [facts.relation]
        # Under REPLICA IDENTITY FULL every column is flagged as key, and under NOTHING none.
        self._is_unflagged = any(relation.replica_identity in _UNFLAGGED for relation in relations)
        types = user_types(binding.types)
        self._relations = [relation.with_types(types) for relation in relations]
        self._keys: dict[Hashable, tuple[str, ...]] = {}
        # What would end a bound shape must not be true from the start.
        unpublished = publication_reason(binding, binding)
        self._unpublished = f"{unpublished}; {command}" if unpublished else None
        self._unfit = reason_to_end(None, binding, binding)

    def completed(self, definition: ShapeDefinition) -> ShapeDefinition:
        """The definition with partitions and key; raises ``ShapeError``, or ``PostgresError`` if it is unpublished."""
        if self._unpublished:
            raise PostgresError(f"shape {definition.id!r}: {self._unpublished}")
        if self._unfit:
            raise ShapeError(f"shape {definition.id!r}: {self._unfit}")
        primary_key = definition.primary_key
        if primary_key is None and self._is_unflagged:
            primary_key = self._primary_key or None
        completed = replace(
            definition,
            primary_key=primary_key,
            partitions=definition.partitions or self._partitions,
            keys_have_partitions=self.binding.is_partitioned,
        )
        key = self._key_columns(Shape(completed))
        return completed if primary_key else replace(completed, primary_key=key)

    def _key_columns(self, shape: Shape) -> tuple[str, ...]:
        """The columns of the shape's key; raises ``ShapeError`` if it cannot be kept on one of the relations."""
        form = None if shape.form is None else (shape.form, bool(shape.definition.partitions))
        if form in self._keys:
            try:
                for relation in self._relations:
                    shape.required_values(relation)
                    shape.required_ranges(relation)
                return self._keys[form]
            except ValueError:
                pass  # A literal is not of its column's type; binding the shape reports it.
        bound = [shape.bind(relation) for relation in self._relations]
        if form is not None:
            self._keys[form] = bound[0].key_columns
        return bound[0].key_columns


def _command(connection: Connection, publication: str, table: TableName) -> str:
    names = [quote_ident(name, connection) for name in (publication, *table)]
    return f"ALTER PUBLICATION {names[0]} ADD TABLE {names[1]}.{names[2]}"
