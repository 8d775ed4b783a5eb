"""What prevents capture from publishing tables by itself, as statements that an administrator runs."""

from collections.abc import Collection, Mapping
from typing import Final

from flushtracker.errors import PostgresError, listed
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.publication import Publication, create_statement
from flushtracker.postgres.server_lacks import ServerLack
from flushtracker.shapes.item_key import quoted
from flushtracker.shapes.table_binding import dotted
from flushtracker.wal.changes import TableName

_RIGHTS: Final = """
SELECT current_user, current_database(), has_database_privilege(current_database(), 'CREATE'), ARRAY(
  SELECT c.oid::bigint FROM pg_class c
  WHERE c.oid = ANY(%s::oid[])
    AND NOT (pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(c.relnamespace, 'USAGE'))
)
"""


def has_publication(connection: Connection, name: str) -> bool:
    return bool(rows(connection, "SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)))


def publication_lacks(
    connection: Connection, name: str, slot: str, tables: Mapping[int, TableName], unpublished: Collection[int]
) -> list[ServerLack]:
    """What the publication lacks, which need not exist, for shapes on ``tables``, by OID; some are ``unpublished``."""
    if not tables:
        return []
    if has_publication(connection, name):
        publication = Publication(connection, name, slot)
        try:
            publication.check()
        except PostgresError as error:
            return [ServerLack(str(error))]
        found = publication.obstacles(dict.fromkeys(unpublished, ()))
        return [ServerLack(each.reason, () if each.statement is None else (each.statement,)) for each in found.values()]
    ((role, database, may_create, others),) = rows(connection, _RIGHTS, (list(tables),))
    if may_create and not others:
        return []
    if not others:
        fact = f"role {role} may not create a publication in this database"
        return [ServerLack(fact, (f"GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(role)}",))]
    names = listed(sorted(dotted(tables[oid]) for oid in others))
    fact = f"role {role} does not have the privileges of the owners of {names}, so it cannot publish them"
    return [ServerLack(fact, (create_statement(connection, name, tables.values()),))]
