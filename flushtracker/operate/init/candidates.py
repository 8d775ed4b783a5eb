"""``Candidate``: a table of a database, with what a shape on it would be, or why none can be on it now.

Tables are judged as by ``flushtracker check --connection``. The statements that make a shape possible restrict nothing
that the applications of the database may write.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from flushtracker.errors import FlushtrackerError
from flushtracker.operate.shapes.catalog_check import judge_shapes
from flushtracker.postgres.connection import Connection
from flushtracker.postgres.identity_remedies import Remedy
from flushtracker.postgres.key_remedies import ADDED_COLUMN, key_remedies
from flushtracker.postgres.raw_names import readable
from flushtracker.postgres.table_bindings import read_bindings
from flushtracker.postgres.table_survey import SurveyedTable, survey_tables
from flushtracker.shapes.catalog_types import reference_type
from flushtracker.shapes.definition import ShapeDefinition, faults_of
from flushtracker.shapes.item_key import sql_table
from flushtracker.shapes.key_binding import NEEDED
from flushtracker.shapes.table_binding import TableBinding, dotted
from flushtracker.shapes.unpublished import is_unpublished
from flushtracker.wal.changes import TableName
from flushtracker.wal.names import is_usable_name

_PUBLIC: Final = "public"


@dataclass(frozen=True, slots=True)
class Candidate:
    """``reasons`` say why the table is refused, ``statements`` make it ready, and ``advice`` is for people.

    ``definition`` is that of a shape of all rows; ``left_out`` are columns that no shape can have. ``key`` is that of
    the shape.
    """

    table: SurveyedTable
    definition: ShapeDefinition
    columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    is_published: bool = False
    reasons: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    advice: str = ""

    @property
    def name(self) -> TableName:
        return self.table.table


def read_candidates(connection: Connection, publication: str | None) -> list[Candidate]:
    """All tables of the database, by name. ``publication`` is one that exists.

    Raises:
        PostgresUnavailableError: the connection is lost, or a query takes too long.
    """
    tables = survey_tables(connection)
    oids = [each.oid for each in tables if each.no_table is None]
    bindings = dict(readable(lambda some: read_bindings(connection, publication, some).items(), oids))
    ids = shape_ids([each.table for each in tables])
    begun = {each.table.oid: each for each in (_begun(table, bindings.get(table.oid), ids) for table in tables)}
    judged = [begun[oid].definition for oid in bindings]
    resolved, errors, remedies = judge_shapes(connection, publication, judged)
    keys = {definition.id: definition.primary_key or () for definition, _ in resolved}
    added = key_remedies(connection, [oid for oid, binding in bindings.items() if not binding.keys])
    for oid, binding in bindings.items():
        found = begun[oid]
        shape_id = found.definition.id
        found = replace(found, key=keys.get(shape_id, ()), is_published=not is_unpublished(binding))
        remedy = remedies.get(shape_id)
        if reasons := _reasons(found, errors.get(shape_id), remedy):
            statements, advice = _remedy(binding, added.get(oid), remedy)
            statements += found.table.grants
            found = replace(found, reasons=reasons, statements=statements, advice=advice)
        begun[oid] = found
    return list(begun.values())


def shape_ids(tables: Sequence[TableName]) -> dict[TableName, str]:
    """An id for a shape on each table: its name, with its schema unless that is ``public``.

    >>> tables = ("public", "orders"), ("crm", "orders"), ("public", "crm.orders"), ("public", "a\\tb")
    >>> list(shape_ids(tables).values())
    ['orders', 'crm.orders', 'crm.orders-2', 'a_b']
    """
    found = dict[TableName, str]()
    taken = set[str]()
    for table in tables:
        name = table[1] if table[0] == _PUBLIC else dotted(table)
        usable = "".join(character if is_usable_name(character) else "_" for character in name)
        names = (usable if number == 1 else f"{usable}-{number}" for number in count(1))
        found[table] = next(each for each in names if each not in taken)
        taken.add(found[table])
    return found


def _begun(table: SurveyedTable, binding: TableBinding | None, ids: Mapping[TableName, str]) -> Candidate:
    definition = ShapeDefinition(ids[table.table], table.table)
    if binding is None:
        reason = f"is {table.no_table}" if table.no_table else "has a name, of a column, say, that UTF-8 does not have"
        return Candidate(table, definition, reasons=(f"{dotted(table.table)} {reason}",))
    types = {each.oid: each for each in binding.types}
    left_out = tuple(column.name for column in binding.columns if reference_type(column.type_oid, types) is not None)
    columns = tuple(column.name for column in binding.columns if column.name not in left_out)
    if left_out:
        definition = replace(definition, columns=columns)
    return Candidate(table, definition, columns, left_out)


def _reasons(candidate: Candidate, error: FlushtrackerError | None, remedy: Remedy | None) -> tuple[str, ...]:
    """Why the table is refused, without what the list of refused tables says anyway."""
    definition, name = candidate.definition, dotted(candidate.name)
    found = [str(fault.error) for fault in faults_of(definition.id, error)] if error is not None else []
    for subject in (f"{definition.subject()}: ", f"{definition.subject()} on {name}: "):
        found = [each.removeprefix(subject) for each in found]
    if remedy is not None:
        found = [each.removesuffix(f"; {remedy}") for each in found]
    if candidate.table.grants:
        found.append(f"this role may not read all rows of {name}, which a snapshot has")
    return tuple(found)


def _remedy(
    binding: TableBinding, added_key: tuple[str, ...] | None, identity: Remedy | None
) -> tuple[tuple[str, ...], str]:
    """Statements, without those that let this role read the table; and advice."""
    if binding.has_children:
        return (), "shapes can be on its children, which are tables of their own"
    members = binding.partitions or (binding,)
    logged = [f"ALTER TABLE {sql_table(each.table)} SET LOGGED" for each in members if not each.is_logged]
    if added_key is not None:
        advice = ADDED_COLUMN if added_key else NEEDED
        return (*logged, *added_key), advice
    if identity is not None:
        return (*logged, *identity.statements), ", or ".join(identity.otherwise)
    return tuple(logged), ""
