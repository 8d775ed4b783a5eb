"""The current rows of a shape's query on the server."""

from typing import Final

from psycopg import sql

from flushtracker.postgres.connection import Connection, translated_errors
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Row

_ALL: Final = sql.SQL("*")


def shape_rows(connection: Connection, definition: ShapeDefinition) -> list[Row]:
    """The rows with the shape's columns, as PostgreSQL sends them: the text of each type's output function.

    A cast to text uses another function for some types, such as boolean. The shape's ``where`` is its owner's SQL and
    runs unchanged. Raises ``PostgresError``.
    """
    columns = sql.SQL(", ").join(map(sql.Identifier, definition.columns)) if definition.columns else _ALL
    query = sql.SQL("SELECT {} FROM {} WHERE ({}\n)").format(
        columns, sql.Identifier(*definition.table), sql.SQL(definition.where or "TRUE")
    )
    with translated_errors(), connection.cursor() as cursor:
        result = cursor.execute(query).pgresult
        if result is None:
            return []
        names = [column.name for column in cursor.description or ()]
        values = ([result.get_value(row, at) for at in range(len(names))] for row in range(result.ntuples))
        return [dict(zip(names, map(_text, row), strict=True)) for row in values]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
