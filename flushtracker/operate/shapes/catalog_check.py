"""Checks shapes against a server's catalog, as capture does."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from flushtracker.capture.shapes.refused_shapes import Resolved, resolve_allowed
from flushtracker.errors import FlushtrackerError, ShapeError
from flushtracker.postgres.connection import Connection, connect, limit_statements
from flushtracker.postgres.identity_remedies import Remedy
from flushtracker.postgres.left_out import left_out_columns
from flushtracker.postgres.replica_identity import identity_reason, without_identity
from flushtracker.postgres.server_tables import LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition, faults_of
from flushtracker.shapes.old_rows import lacked_by_new_partitions, new_partitions_note, old_columns
from flushtracker.shapes.unpublished import is_unpublished

_NAME: Final = {"application_name": "flushtracker_check"}
_FULL: Final = "REPLICA IDENTITY FULL"
CAPTURE_SETS_IT: Final = (
    f"with capture.replica_identity: full, capture sets {_FULL} by itself, where that breaks no statement and it "
    "manages the publication"
)


def catalog_errors(
    connection: Mapping[str, str], publication: str | None, definitions: Sequence[ShapeDefinition]
) -> list[FlushtrackerError]:
    return catalog_problems(connection, publication, definitions)[0]


def catalog_problems(
    connection: Mapping[str, str], publication: str | None, definitions: Sequence[ShapeDefinition]
) -> tuple[list[FlushtrackerError], list[str]]:
    """All errors of the catalog check, in the order of the definitions, and notes about what may end a shape later, or
    is missing from it.

    Without a publication, none is needed. A table without a replica identity is also an error, unless it is published:
    capture would not publish it.

    Raises:
        PostgresError: the server cannot be reached, or refuses the connection.
    """
    with closing(connect({**connection, **_NAME})) as opened:
        limit_statements(opened, statement_timeout_s=STATEMENT_TIMEOUT_S, lock_timeout_s=LOCK_TIMEOUT_S)
        resolved, errors, _ = judge_shapes(opened, publication, definitions)
        whole = {definition.table for definition in definitions if definition.columns is None}
        left_out = [f"note: {each}" for each in left_out_columns(opened, publication, whole)]
    wrong = [shape.id for shape in definitions if shape.id in errors]
    # An error that concerns all of them counts once.
    found = dict.fromkeys(fault.error for shape_id in wrong for fault in faults_of(shape_id, errors[shape_id]))
    notes = [
        f"note: {definition.subject('table')}: {new_partitions_note(table, lacked)}"
        for definition, table in resolved
        if (lacked := lacked_by_new_partitions(definition, table))
    ]
    if any(_FULL in str(error) for error in found):
        left_out.append(f"note: {CAPTURE_SETS_IT}")
    return list(found), notes + left_out


def judge_shapes(
    opened: Connection, publication: str | None, definitions: Sequence[ShapeDefinition]
) -> tuple[Resolved, dict[str, FlushtrackerError], dict[str, Remedy]]:
    """The definitions that the catalog allows, each with its table; the errors of the others, and for those whose table
    lacks only a replica identity a remedy, by id.

    Raises:
        PostgresUnavailableError: the server cannot be reached.
    """
    resolved, errors = resolve_allowed(definitions, partial(resolve_shapes, opened, publication))
    needed = old_columns((shape, table) for shape, table in resolved if is_unpublished(table))
    lacking, remedies = without_identity(opened, publication, needed), dict[str, Remedy]()
    for definition, table in resolved:
        if table.oid in lacking:
            broken, remedy = lacking[table.oid]
            fact = f"{definition.subject('table')}: {identity_reason(broken)}; {remedy}"
            errors[definition.id], remedies[definition.id] = ShapeError(fact), remedy
    return resolved, errors, remedies
