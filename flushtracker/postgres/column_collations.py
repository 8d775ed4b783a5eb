"""``ColumnCollations``: the columns with their own collation, and conditions that compare two collations."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from flushtracker.errors import ShapeError
from flushtracker.postgres.connection import Connection, rows
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import quoted, sql_table
from flushtracker.shapes.where import parse_where
from flushtracker.shapes.where.compared_texts import ColumnOf
from flushtracker.wal.changes import TableName

# 100 is the database's collation.
_COLLATIONS: Final = """
SELECT a.attrelid::bigint, a.attname, concat(quote_ident(n.nspname), '.', quote_ident(c.collname)),
  format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation JOIN pg_namespace n ON n.oid = c.collnamespace
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND c.oid <> 100
"""


@dataclass(frozen=True, slots=True)
class _Collated:
    collation: str
    type: str


class ColumnCollations:
    """The column collations of certain tables, by OID, as of its creation."""

    def __init__(self, connection: Connection, tables: Mapping[int, TableName]) -> None:
        self._collated: dict[ColumnOf, _Collated] = {
            (tables[oid], name): _Collated(*found)
            for oid, name, *found in rows(connection, _COLLATIONS, (list(tables),))
        }
        self._tables = {table for table, _ in self._collated}

    def conflict(self, definition: ShapeDefinition, tables: Collection[TableName]) -> ShapeError | None:
        """The error for a valid condition that compares texts of two collations; ``tables`` are those it reads."""
        if definition.where is None or self._tables.isdisjoint(tables):
            return None
        for columns in parse_where(definition.where).compared_texts(definition.table):
            collated = {each: self._collated[each] for each in sorted(columns) if each in self._collated}
            if len({each.collation for each in collated.values()}) > 1:
                return self._error(definition, collated)
        return None

    @staticmethod
    def _error(definition: ShapeDefinition, collated: Mapping[ColumnOf, _Collated]) -> ShapeError:
        first, *others = collated.items()
        named = [f"{'.'.join((*table, name))} (collation {each.collation})" for (table, name), each in collated.items()]
        statements = [
            f"ALTER TABLE {sql_table(table)} ALTER {quoted(name)} TYPE {each.type} COLLATE {first[1].collation}"
            for (table, name), each in others
            if each.collation != first[1].collation
        ]
        return ShapeError(
            f"{definition.subject('where')}: where compares {' with '.join(named)}, which is an error in PostgreSQL: "
            "it does not know which collation to use; compare each with literals, or give them one collation, which "
            f"ends shapes that have the altered column: {'; '.join(statements)}"
        )
