"""Completes the definitions of new shapes from the catalog, and refuses those that cannot be kept.

There may be many thousands, on a few tables: the catalog is read once for all of them, by a fixed number of queries.
Apart from their literals, either all shapes of one form (:attr:`~flushtracker.shapes.shape.Shape.form`) can be kept on
a table, or none can. So one of them is bound, and only the literals of the others are checked.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from typing import Final

from flushtracker.errors import FlushtrackerError, PostgresError, ShapeError, combined, first_of, listed
from flushtracker.postgres.catalog import Catalog, TableFacts
from flushtracker.postgres.column_collations import ColumnCollations
from flushtracker.postgres.connection import Connection, one_snapshot, server_encoding
from flushtracker.postgres.identity_remedies import IdentityRemedies
from flushtracker.postgres.missing_tables import read_missing_tables
from flushtracker.postgres.own_casts import own_casts
from flushtracker.postgres.prepared_where import refused_conditions, type_names
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.key_binding import NEEDED
from flushtracker.shapes.relation_faults import IdentityLack
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.shape_parts import has_subqueries, parts_of, queried_tables, rows_in_two_tables, tables_of
from flushtracker.shapes.table_binding import TableBinding, filter_reason, unkept_reason
from flushtracker.shapes.type_binding import user_types
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Relation, TableName

_UNFLAGGED: Final = {"full", "nothing"}
"""Replica identities under which the columns' flags do not show the key."""


def resolve_shapes(
    connection: Connection, publication: str | None, definitions: Sequence[ShapeDefinition]
) -> list[tuple[ShapeDefinition, TableBinding]]:
    """Each definition, completed, with its table, and repeated with each other table that its subqueries read.

    Raises as ``ServerTables.resolve`` does.

    Without a publication, tables need not be published. The error includes those of all refused definitions
    (:func:`~flushtracker.errors.first_of`); the others can be resolved without them.
    """
    with one_snapshot(connection):
        names = {table for definition in definitions for table in tables_of(definition)}
        facts = Catalog(connection, publication).tables(names)
        bindings = read_bindings(connection, publication, [table.oid for table in facts.values()])
    encoding, remedies = server_encoding(connection), IdentityRemedies(connection, publication)
    casts = own_casts(connection, [table.oid for table in facts.values()])
    tables = {
        name: _Table(found, bindings[found.oid], encoding, remedies, casts.get(found.oid, {}))
        for name, found in facts.items()
        if found.oid in bindings
    }
    collations = ColumnCollations(connection, {table.oid: name for name, table in facts.items()})
    missing = names - tables.keys()
    reasons = read_missing_tables(connection, missing) if missing else {}
    resolved, errors = [], dict[str, FlushtrackerError]()
    for definition in definitions:
        own = tables_of(definition)
        lacking = [table for table in own if table in missing]
        if lacking:
            key = "table" if definition.table in lacking else "where"
            errors[definition.id] = ShapeError(f"{definition.subject(key)}: {reasons[lacking[0]]}")
            continue
        try:
            completed = _completed(definition, {table: tables[table] for table in own})
            if conflict := collations.conflict(completed, own):
                raise conflict
            resolved += [(completed, tables[table].binding) for table in own]
        except (ShapeError, PostgresError) as error:
            errors[definition.id] = error
    types = type_names(connection, [table.relation for table in tables.values()])
    for table in tables.values():
        errors |= table.refused_by(connection, types)
    if errors:
        raise first_of(errors)
    return resolved


def _completed(definition: ShapeDefinition, tables: Mapping[TableName, "_Table"]) -> ShapeDefinition:
    """The definition with its keys; raises as ``_Table.completed``, with the faults of all of its parts."""
    if not has_subqueries(definition):
        return tables[definition.table].completed(definition)
    faults, parts = list[FlushtrackerError](), dict[TableName, ShapeDefinition]()
    if definition.snapshot is False:
        fact = (
            "snapshot is false, but which rows a shape with subqueries has depends on those that its tables had before"
        )
        faults.append(ShapeError(f"{definition.subject('snapshot')}: {fact}; leave it out, or set it to true"))
    for part in parts_of(definition):
        try:
            parts[part.table] = tables[part.table].completed(part)
        except (ShapeError, PostgresError) as error:  # noqa: PERF203  all of them are wanted
            faults += [error, *error.also]
    if both := _overlapping(tables):
        faults.append(ShapeError(f"{definition.subject('where')}: {rows_in_two_tables(*both)}"))
    if not faults and definition.where is not None:
        try:
            parse_where(definition.where).joined(
                definition.table, {name: table.relation for name, table in tables.items()}
            )
        except ShapeError as error:
            faults.append(ShapeError(f"{definition.subject('where')}: {error}"))
    if faults:
        raise combined(faults)
    inner = tuple(
        InnerTable(name, tables[name].binding.oid, part.primary_key or (), part.keys_have_partitions)
        for name in queried_tables(definition)
        for part in [parts[name]]
    )
    own = parts[definition.table]
    return replace(
        definition,
        primary_key=own.primary_key,
        partitions=(),
        keys_have_partitions=own.keys_have_partitions,
        inner_tables=inner,
    )


def _overlapping(tables: Mapping[TableName, "_Table"]) -> tuple[TableName, TableName] | None:
    """Two of the tables that share rows, because one is a partition of the other, or above the same partitions."""
    for (name, table), (other_name, other) in combinations(tables.items(), 2):
        if not table.members.isdisjoint(other.members):
            return name, other_name
    return None


class _Table:
    """A table on which shapes are added, in the publication or not yet."""

    def __init__(
        self,
        facts: TableFacts,
        binding: TableBinding,
        encoding: str,
        remedies: IdentityRemedies,
        casts: Mapping[str, str],
    ) -> None:
        self.binding = binding
        self._casts = casts
        self._encoding = encoding
        self._find_remedy = cache(partial(remedies.of, facts.relation.table))
        self.members = frozenset({binding.oid, *(partition.oid for partition in binding.partitions)})
        """The table and its partitions, by OID."""
        self._partitions = tuple(partition.relation.table for partition in facts.partitions)
        self._name = ".".join(facts.relation.table)
        types = user_types(binding.types)
        relations = [partition.relation for partition in facts.partitions] or [facts.relation]
        layouts: dict[object, list[Relation]] = {}
        for relation in relations:
            layouts.setdefault((relation.columns, relation.replica_identity), []).append(relation.with_types(types))
        self._layouts = tuple(layouts.values())
        self._relations = tuple(alike[0] for alike in self._layouts)
        self.relation = self._relations[0]
        self._key = _default_key(binding, relations)
        self._unsent = facts.unsent
        self._forms: set[Hashable] = set()
        self._unprepared: list[ShapeDefinition] = []
        """The first definition of each form, whose condition the server has not prepared yet."""
        # A condition that would end a bound shape must not hold from the start.
        self._omitted = filter_reason(binding)

    def completed(self, definition: ShapeDefinition) -> ShapeDefinition:
        """The definition with its key; raises ``ShapeError``, or ``PostgresError`` if the publication omits changes.

        The error includes everything wrong with the shape (:attr:`~flushtracker.errors.FlushtrackerError.also`). The
        partitions are recorded with the table.
        """
        faults: list[FlushtrackerError] = []
        if self._omitted:
            faults.append(PostgresError(f"{definition.subject('table')}: {self._omitted}"))
        primary_key = definition.primary_key or self._key
        if not primary_key:
            table = ".".join(definition.table)
            faults.append(ShapeError(f"{definition.subject('table')}: table {table} has no key: it needs {NEEDED}"))
        if unknown := set(definition.partitions) - set(self._partitions):
            names = listed([".".join(each) for each in sorted(unknown)])
            fact = f"partitions names {names}, which {self._name} does not have"
            faults.append(ShapeError(f"{definition.subject('partitions')}: {fact}"))
        completed = replace(
            definition, primary_key=primary_key, partitions=(), keys_have_partitions=self.binding.is_partitioned
        )
        try:
            shape = Shape(completed)
        except ShapeError as error:
            faults.append(error)
            shape = Shape(replace(completed, where=None))
        is_new = not self._is_like_another(shape)
        if is_new:
            found = list(self._faults_of(shape))
            if not found and shape.form is not None:
                self._forms.add(shape.form)
            faults += found
        if not faults:
            # Unlike other faults, these depend on the literals.
            faults += shape.encoding_faults(self._relations[0], self._encoding)
        if faults:
            raise combined(faults)
        if is_new:
            self._unprepared.append(definition)
        return completed

    def refused_by(self, connection: Connection, names: Mapping[int, str]) -> dict[str, ShapeError]:
        """The errors of completed shapes whose condition the server refuses to prepare, by id."""
        wheres = {each.id: each.where for each in self._unprepared if each.where is not None}
        refused = refused_conditions(connection, self.relation, list(dict.fromkeys(wheres.values())), names)
        return {
            each.id: ShapeError(f"{each.subject('where')}: PostgreSQL does not prepare it: {refused[each.where]}")
            for each in self._unprepared
            if each.where in refused
        }

    def _faults_of(self, shape: Shape) -> Iterator[ShapeError]:
        """The table's faults for a shape, apart from those found by :meth:`completed`."""
        definition, key = shape.definition, shape.definition.primary_key or ()
        used, filtered = shape.used_columns, shape.filtered_columns
        unsent = [column for column in self._unsent if column in {*(used or ()), *key, *filtered}]
        for column in unsent:
            yield ShapeError(
                f"{definition.subject('columns')}: column {column} of table {self._name} is generated, and the "
                "publication does not send it; use the columns that it is generated from"
            )
        for column in sorted(filtered & self._casts.keys()):
            yield ShapeError(
                f"{definition.subject('where')}: where reads column {column} of table {self._name}, and this database "
                f"has a {self._casts[column]} of its own, with which operators may mean others; leave the column out "
                "of where, or the cast out of the database"
            )
        has_key = key and set(key) <= {column.name for column in self.binding.columns}
        if has_key and (reason := unkept_reason(used, self.binding, self.binding, key, shape.filter)):
            yield ShapeError(f"{definition.subject('table')}: {reason}")
        if not unsent:
            faults = {str(error): error for relation in self._relations for error in shape.faults(relation)}
            yield from faults.values() or self._identity_faults(shape)

    def _identity_faults(self, shape: Shape) -> Iterator[ShapeError]:
        """The columns missing from old rows, each with all partitions concerned, and a remedy for all of them."""
        lacking: dict[IdentityLack, list[Relation]] = {}
        for alike in self._layouts:
            for lack in shape.identity_lacks(alike[0]):
                lacking.setdefault(lack, []).extend(alike)
        oids = frozenset(relation.relation_id for alike in lacking.values() for relation in alike)
        for lack, found in lacking.items():
            remedy = self._find_remedy(oids, shape.old_columns)
            error = lack.error(shape.definition, [relation.table for relation in found], str(remedy))
            error.leaves = oids
            yield error

    def _is_like_another(self, shape: Shape) -> bool:
        """Whether a shape of the same form can be kept, and the literals fit their columns' types."""
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
    """The table's first key that all old rows contain, or else its first key; empty if there is none.

    Its columns are in table order; with partitions, whose column orders may differ, by name; and in key order if the
    replica identity does not show the key.
    """
    keys = [each.columns for each in binding.keys]
    sent = [relation.key_columns for relation in relations if relation.key_columns]
    chosen = next((key for key in keys if all(set(key) <= set(columns) for columns in sent)), keys[0] if keys else ())
    if any(relation.replica_identity in _UNFLAGGED for relation in relations):
        return chosen
    if binding.is_partitioned:
        return tuple(sorted(chosen))
    return tuple(column.name for column in binding.columns if column.name in chosen)
