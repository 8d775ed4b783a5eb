"""Has the server prepare conditions, so that it refuses now what it would refuse in a snapshot.

They are prepared for a row of NULLs of the columns' types, not for the table, so this locks no table and needs no
privilege on one. Preparing neither plans nor evaluates anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from psycopg import errors, sql

from flushtracker.errors import PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection import Connection, rows, translated_errors
from flushtracker.shapes.where.server_text import server_text
from flushtracker.wal.changes import Relation

_TYPE_NAMES: Final = "SELECT oid::bigint, format_type(oid, NULL) FROM pg_type WHERE oid = ANY(%s::oid[])"
_NAME: Final = sql.Identifier("flushtracker_where")
_AT_ONCE: Final = 100


def type_names(connection: Connection, relations: Iterable[Relation]) -> dict[int, str]:
    """The names of all column types, as the server writes them in SQL, by OID."""
    oids = sorted({column.type_oid for relation in relations for column in relation.columns})
    return dict(rows(connection, _TYPE_NAMES, (oids,)))


def refused_conditions(
    connection: Connection, relation: Relation, wheres: Sequence[str], names: Mapping[int, str]
) -> dict[str, str]:
    """The server's message for each condition that it refuses to prepare.

    Each must be valid for ``relation``; ``names`` are those of its types. Conditions are skipped if this role may not
    use a type's schema. Raises ``PostgresUnavailableError``.
    """
    columns = [
        sql.SQL("NULL::{} AS {}").format(sql.SQL(names[column.type_oid]), sql.Identifier(column.name))
        for column in relation.columns
        if column.type_oid in names
    ]
    row = sql.SQL("SELECT {}").format(sql.SQL(", ").join(columns))
    refused: dict[str, str] = {}
    for first in range(0, len(wheres), _AT_ONCE):
        several = wheres[first : first + _AT_ONCE]
        if _refusal(connection, row, relation, several) is None:
            continue
        found = {where: _refusal(connection, row, relation, [where]) for where in several}
        refused |= {where: message for where, message in found.items() if message}
    return refused


def _refusal(connection: Connection, row: sql.Composable, relation: Relation, wheres: Sequence[str]) -> str | None:
    """The server's message, ``None`` if it accepts; empty if it cannot judge."""
    # The line break ends a comment.
    conditions = sql.SQL(" OR ").join(sql.SQL("({}\n)").format(sql.SQL(server_text(each, relation))) for each in wheres)
    statement = sql.SQL("PREPARE {} AS SELECT FROM ({}) AS found WHERE {}; DEALLOCATE {}").format(
        _NAME, row, conditions, _NAME
    )
    try:
        with translated_errors(), connection.cursor() as cursor:
            cursor.execute(statement)
    except PostgresUnavailableError:
        raise
    except PostgresError as error:
        return "" if isinstance(error.__cause__, errors.InsufficientPrivilege) else str(error)
    return None
