"""The rows of a shape's query, as the server has them now."""

from psycopg2 import sql

from flushtracker.postgres.connection import Connection, one_snapshot, rows
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.changes import Row


def shape_rows(connection: Connection, definition: ShapeDefinition) -> list[Row]:
    """Each row of the shape's columns, as PostgreSQL's text; raises ``PostgresError``.

    The shape's ``where`` is its owner's SQL, and runs as it is.
    """
    table = sql.Identifier(*definition.table)
    where = sql.SQL(definition.where or "TRUE")
    with one_snapshot(connection):
        names = definition.columns or _column_names(connection, table)
        columns = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(columns, table, where)
        found = rows(connection, query.as_string(connection))
    return [dict(zip(names, row, strict=True)) for row in found]


def _column_names(connection: Connection, table: sql.Identifier) -> tuple[str, ...]:
    query = sql.SQL("SELECT * FROM {} LIMIT 0").format(table)
    with connection.cursor() as cursor:
        cursor.execute(query)
        return tuple(column.name for column in cursor.description or ())
