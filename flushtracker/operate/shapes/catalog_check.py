"""What a server's catalog does not allow of shapes, as capture judges it."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from flushtracker.capture.refused_shapes import resolve_allowed
from flushtracker.errors import FlushtrackerError, ShapeError
from flushtracker.postgres.connection import connect, limit_statements
from flushtracker.postgres.replica_identity import identity_reason, without_identity
from flushtracker.postgres.server_tables import LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition, faults_of
from flushtracker.shapes.unpublished import is_unpublished

_NAME: Final = {"application_name": "flushtracker_check"}


def catalog_errors(
    connection: Mapping[str, str], publication: str | None, definitions: Sequence[ShapeDefinition]
) -> list[FlushtrackerError]:
    """All that the catalog does not allow, in the order of the definitions; without a publication, none is needed.

    A table without a replica identity is an error, too, unless it is published: capture would not publish it.

    Raises:
        PostgresError: the server cannot be reached, or refuses the connection.
    """
    with closing(connect({**connection, **_NAME})) as opened:
        limit_statements(opened, statement_timeout_s=STATEMENT_TIMEOUT_S, lock_timeout_s=LOCK_TIMEOUT_S)
        resolved, errors = resolve_allowed(definitions, partial(resolve_shapes, opened, publication))
        lacking = without_identity(opened, publication, {table.oid for _, table in resolved if is_unpublished(table)})
    for definition, table in resolved:
        if table.oid in lacking:
            broken, remedies = lacking[table.oid]
            fact = f"{definition.subject('table')}: {identity_reason(broken)}; {'; '.join(remedies)}"
            errors[definition.id] = ShapeError(fact)
    wrong = [shape.id for shape in definitions if shape.id in errors]
    # One that concerns all of them is one.
    return list(dict.fromkeys(fault.error for shape_id in wrong for fault in faults_of(shape_id, errors[shape_id])))
