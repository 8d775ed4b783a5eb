"""``ServerTables``: what the shapes' definitions need to know of the server."""

from dataclasses import replace

from psycopg2.extensions import connection as Connection  # noqa: N812  a class, whatever its module calls it

from flushtracker.changes import TableName
from flushtracker.errors import ShapeError
from flushtracker.postgres.catalog import Catalog
from flushtracker.postgres.slot import check_publication, wal_end
from flushtracker.shape_definition import ShapeDefinition
from flushtracker.shapes import Shape


class ServerTables:
    """Asks an ordinary connection; raises ``PostgresAwayError`` where it is lost."""

    def __init__(self, connection: Connection, publication: str) -> None:
        self._connection = connection
        self._catalog = Catalog(connection)
        self._publication = publication

    def wal_end(self) -> int:
        return wal_end(self._connection)

    def ancestors(self, oid: int) -> frozenset[TableName]:
        return self._catalog.ancestors(oid)

    def resolve(self, definition: ShapeDefinition) -> tuple[ShapeDefinition, int]:
        """Fill in the partitions, and the primary key where the stream does not tell it; check that it can be kept.

        Raises:
            ShapeError: there is no such table, or its columns or replica identity do not allow the shape.
            PostgresError: the table is not in the publication.
        """
        facts = self._catalog.table(definition.table)
        if facts is None:
            table = ".".join(definition.table)
            raise ShapeError(f"shape {definition.id!r}: there is no table {table} in this database")
        relations = [table.relation for table in facts.partitions] or [facts.relation]
        primary_key = definition.primary_key
        # Under REPLICA IDENTITY FULL every column is flagged as key; otherwise the flags are the key.
        if primary_key is None and any(relation.replica_identity == "full" for relation in relations):
            primary_key = facts.primary_key or None
        partitions = definition.partitions or tuple(relation.table for relation in relations if facts.partitions)
        resolved = replace(definition, primary_key=primary_key, partitions=partitions)
        shape = Shape(resolved)
        for relation in relations:
            shape.bind(relation)
        if not facts.is_partitioned or partitions:
            check_publication(self._connection, self._publication, partitions or (definition.table,))
        return resolved, facts.oid
