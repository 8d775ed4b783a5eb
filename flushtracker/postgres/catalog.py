"""``Catalog``: tables as the catalog describes them: columns as in pgoutput, keys, partitions and ancestors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from flushtracker.postgres.connection import Connection, rows
from flushtracker.wal.changes import Column, Relation, TableName

_IDENTITIES: Final[dict[str, Literal["default", "nothing", "full", "index"]]] = {
    "d": "default",
    "n": "nothing",
    "f": "full",
    "i": "index",
}

_TABLE: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident, c.relkind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
"""
# Columns are in key order. pgoutput flags those of the replica identity.
_KEYS: Final = """
SELECT i.indrelid::bigint, a.attname, i.indisprimary, i.indisreplident
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS k(attnum, ordinal)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY(%s::oid[]) AND (i.indisprimary OR i.indisreplident) AND k.ordinal <= i.indnkeyatts
ORDER BY i.indrelid, k.ordinal
"""
_COLUMNS: Final = """
SELECT attrelid::bigint, attname, atttypid::bigint FROM pg_attribute
WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
ORDER BY attrelid, attnum
"""
_LEAVES: Final = "SELECT relid::oid::bigint FROM pg_partition_tree(%s::oid) WHERE isleaf AND relid <> %s::oid"
_ANCESTORS: Final = (
    "SELECT a.relid::oid::bigint FROM pg_partition_ancestors(%s::oid) AS a(relid) WHERE a.relid <> %s::oid"
)

_Key: TypeAlias = tuple[list[str], list[str]]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table as the catalog has it now. ``relation`` is what pgoutput would send for it.

    ``primary_key`` is in key order, and empty if there is none. ``partitions`` are the leaves, at any depth.
    """

    oid: int
    relation: Relation
    primary_key: tuple[str, ...]
    is_partitioned: bool = False
    partitions: tuple["TableFacts", ...] = ()


class Catalog:
    """Catalog queries over an ordinary connection; raises ``PostgresUnavailableError`` if that is lost."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def table(self, name: TableName) -> TableFacts | None:
        """A table, or a partitioned table with its partitions; ``None`` if there is none of that name."""
        found = rows(self._connection, f"{_TABLE} WHERE n.nspname = %s AND c.relname = %s", name)
        if not found or found[0][4] not in {"r", "p"}:
            return None
        oid = found[0][0]
        leaves = [leaf for (leaf,) in rows(self._connection, _LEAVES, (oid, oid))]
        facts = {table.oid: table for table in self._facts([oid, *leaves])}
        if oid not in facts:
            return None
        partitions = tuple(facts[leaf] for leaf in leaves if leaf in facts)
        root = facts[oid]
        return TableFacts(oid, root.relation, root.primary_key, found[0][4] == "p", partitions)

    def ancestors(self, oid: int) -> frozenset[int]:
        """The OIDs of the partitioned tables that a table is a partition of, at any depth; empty for any other."""
        return frozenset(ancestor for (ancestor,) in rows(self._connection, _ANCESTORS, (oid, oid)))

    def _facts(self, oids: Sequence[int]) -> Iterable[TableFacts]:
        ids = list(oids)
        keys: dict[int, _Key] = {oid: ([], []) for oid in ids}
        for oid, name, is_primary, is_identity in rows(self._connection, _KEYS, (ids,)):
            keys[oid][0].extend([name] if is_primary else [])
            keys[oid][1].extend([name] if is_identity else [])
        columns: dict[int, list[tuple[str, int]]] = {oid: [] for oid in ids}
        for oid, name, type_oid in rows(self._connection, _COLUMNS, (ids,)):
            columns[oid].append((name, type_oid))
        for oid, schema, name, identity, _ in rows(self._connection, f"{_TABLE} WHERE c.oid = ANY(%s::oid[])", (ids,)):
            yield _table_facts(oid, (schema, name), _IDENTITIES[identity], columns[oid], keys[oid])


def _table_facts(
    oid: int,
    name: TableName,
    identity: Literal["default", "nothing", "full", "index"],
    columns: list[tuple[str, int]],
    key: _Key,
) -> TableFacts:
    primary_key, index_columns = key
    sent = {"default": primary_key, "index": index_columns, "nothing": [], "full": [name for name, _ in columns]}
    relation = Relation(
        oid, *name, identity, tuple(Column(column, type_oid, column in sent[identity]) for column, type_oid in columns)
    )
    return TableFacts(oid, relation, tuple(primary_key))
