"""Completes the definitions of new shapes from the catalog, and refuses those that cannot be kept.

There may be many thousands, on a few tables: the catalog is read once for all of them, by a fixed number of queries.
Shapes of one form (:attr:`~flushtracker.shapes.shape.Shape.form`) can all be kept on a table or none can, apart from
their literals, so one of them is bound, and of the others only the literals are read.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from typing import Final

from flushtracker.errors import PostgresError, ShapeError, listed
from flushtracker.postgres.catalog import Catalog, TableFacts
from flushtracker.postgres.connection import Connection, one_snapshot
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.key_binding import NEEDED
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import TableBinding, publication_reason, unkept_reason
from flushtracker.shapes.type_binding import user_types
from flushtracker.shapes.unpublished import is_unpublished
from flushtracker.wal.changes import Relation

_UNFLAGGED: Final = {"full", "nothing"}
"""Replica identities under which the columns' flags do not show the key."""


def resolve_shapes(
    connection: Connection, publication: str, definitions: Sequence[ShapeDefinition]
) -> list[tuple[ShapeDefinition, TableBinding]]:
    """Each definition, completed, with its table; raises as ``ServerTables.resolve`` does."""
    with one_snapshot(connection):
        facts = Catalog(connection, publication).tables({definition.table for definition in definitions})
        bindings = read_bindings(connection, publication, [table.oid for table in facts.values()])
    tables = {name: _Table(found, bindings[found.oid]) for name, found in facts.items() if found.oid in bindings}
    resolved = []
    for definition in definitions:
        table = tables.get(definition.table)
        if table is None:
            dotted = ".".join(definition.table)
            raise ShapeError(f"shape {definition.id!r}: there is no table {dotted} in this database")
        resolved.append((table.completed(definition), table.binding))
    return resolved


class _Table:
    """A table that shapes are added on, in the publication or not yet."""

    def __init__(self, facts: TableFacts, binding: TableBinding) -> None:
        self.binding = binding
        self._partitions = tuple(partition.relation.table for partition in facts.partitions)
        self._name = ".".join(facts.relation.table)
        types = user_types(binding.types)
        relations = [partition.relation for partition in facts.partitions] or [facts.relation]
        layouts: dict[object, Relation] = {}
        for relation in relations:
            layouts.setdefault((relation.columns, relation.replica_identity), relation.with_types(types))
        self._relations = tuple(layouts.values())
        self._key = _default_key(binding, relations)
        self._unsent = facts.unsent
        self._forms: set[Hashable] = set()
        # What would end a bound shape must not be true from the start.
        self._omitted = None if is_unpublished(binding) else publication_reason(binding, binding)

    def completed(self, definition: ShapeDefinition) -> ShapeDefinition:
        """The definition with its key; raises ``ShapeError``, or ``PostgresError`` if the publication omits changes.

        The partitions are the table's, and are recorded with it.
        """
        name = f"shape {definition.id!r}"
        if self._omitted:
            raise PostgresError(f"{name}: {self._omitted}")
        primary_key = definition.primary_key or self._key
        if not primary_key:
            raise ShapeError(f"{name}: table {'.'.join(definition.table)} has no key: it needs {NEEDED}")
        if unknown := set(definition.partitions) - set(self._partitions):
            listed_names = listed([".".join(each) for each in sorted(unknown)])
            raise ShapeError(f"{name}: partitions names {listed_names}, which {self._name} does not have")
        completed = replace(
            definition, primary_key=primary_key, partitions=(), keys_have_partitions=self.binding.is_partitioned
        )
        shape = Shape(completed)
        if not self._is_like_another(shape):
            used, filtered = shape.used_columns, shape.filtered_columns
            self._require_sent(name, {*(used or ()), *primary_key, *filtered})
            if reason := unkept_reason(used, self.binding, self.binding, primary_key, filtered):
                raise ShapeError(f"{name}: {reason}")
            for relation in self._relations:
                shape.bind(relation)
            if shape.form is not None:
                self._forms.add(shape.form)
        return completed

    def _require_sent(self, name: str, columns: Collection[str]) -> None:
        for column in self._unsent:
            if column in columns:
                raise ShapeError(
                    f"{name}: column {column} of table {'.'.join(self.binding.table)} is generated, and the "
                    "publication does not send it; use the columns that it is generated from"
                )

    def _is_like_another(self, shape: Shape) -> bool:
        """Whether a shape of its form can be kept, and its literals are of their columns' types."""
        if shape.form not in self._forms:
            return False
        try:
            for relation in self._relations:
                shape.required_values(relation)
                shape.required_ranges(relation)
        except ValueError:
            return False
        return True


def _default_key(binding: TableBinding, relations: Sequence[Relation]) -> tuple[str, ...]:
    """The first of the table's keys that all old rows contain, or else the first; empty if there is none.

    Its columns are in the order of the table; with partitions, whose column orders may differ, by name; and in the
    order of the key if the replica identity does not show it.
    """
    keys = [each.columns for each in binding.keys]
    sent = [relation.key_columns for relation in relations if relation.key_columns]
    chosen = next((key for key in keys if all(set(key) <= set(columns) for columns in sent)), keys[0] if keys else ())
    if any(relation.replica_identity in _UNFLAGGED for relation in relations):
        return chosen
    if binding.is_partitioned:
        return tuple(sorted(chosen))
    return tuple(column.name for column in binding.columns if column.name in chosen)
