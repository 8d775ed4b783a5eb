"""The rows of a shape's query, as the server has them now."""

from typing import Final

from psycopg2 import sql
from psycopg2.extensions import new_type, register_type

from flushtracker.postgres.connection import Connection, answer_deadline, one_snapshot, translated_errors
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Row

_ALL: Final = sql.SQL("*")


def shape_rows(connection: Connection, definition: ShapeDefinition) -> list[Row]:
    """Each row of the shape's columns, as PostgreSQL sends them: the text of each type's output function.

    A cast to text is another function for some types, such as boolean. The shape's ``where`` is its owner's SQL, and
    runs as it is. Raises ``PostgresError``.
    """
    columns = sql.SQL(", ").join(map(sql.Identifier, definition.columns)) if definition.columns else _ALL
    query = sql.SQL("SELECT {} FROM {} WHERE ({}\n)").format(
        columns, sql.Identifier(*definition.table), sql.SQL(definition.where or "TRUE")
    )
    with one_snapshot(connection), answer_deadline(connection), translated_errors(), connection.cursor() as cursor:
        # Without rows first: how psycopg2 reads a value is decided by its type, before the rows arrive.
        cursor.execute(query + sql.SQL(" LIMIT 0"))
        description = cursor.description or ()
        as_sent = new_type(tuple({column.type_code for column in description}), "AS_SENT", lambda text, _: text)
        register_type(as_sent, cursor)
        cursor.execute(query)
        return [dict(zip([column.name for column in description], row, strict=True)) for row in cursor]
