"""``resolve_readable``: resolves shapes, although a table of some of them cannot be read."""

from collections import defaultdict
from collections.abc import Sequence

from flushtracker.errors import FlushtrackerError, PostgresError, ShapeError, first_of
from flushtracker.postgres.connection import Connection, is_untranslatable
from flushtracker.postgres.shape_resolution import resolve_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.shape_parts import tables_of
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.changes import TableName


def resolve_readable(
    connection: Connection, publication: str, definitions: Sequence[ShapeDefinition]
) -> list[tuple[ShapeDefinition, TableBinding]]:
    """As ``resolve_shapes``; names that the server cannot convert to UTF-8 are an error of the shapes on their table.

    The server refuses the query about all tables for one such name, which the table's owner may give a column.
    """
    try:
        return resolve_shapes(connection, publication, definitions)
    except PostgresError as error:
        if not is_untranslatable(error) or not (errors := _unreadable(connection, publication, definitions)):
            raise
    raise first_of(errors)


def _unreadable(
    connection: Connection, publication: str, definitions: Sequence[ShapeDefinition]
) -> dict[str, FlushtrackerError]:
    """The errors of the definitions, by id, whose tables cannot be read; many shapes have the same tables."""
    by_tables = defaultdict[tuple[TableName, ...], list[ShapeDefinition]](list)
    for definition in definitions:
        by_tables[tables_of(definition)].append(definition)
    errors = dict[str, FlushtrackerError]()
    for alike in by_tables.values():
        try:
            resolve_shapes(connection, publication, alike)
        except ShapeError:  # noqa: PERF203  each table is tried alone
            # It is found again when the others are resolved without those that cannot be.
            continue
        except PostgresError as error:
            if is_untranslatable(error):
                errors |= {each.id: PostgresError(f"{each.subject('table')}: {error}") for each in alike}
    return errors
