"""``Catalog``: reads tables from the catalog: columns as in pgoutput, keys, partitions and ancestors."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.inheritance import BELOW, IS_ATTACHED
from flushtracker.wal.changes import Column, Relation, TableName
from flushtracker.wal.mvcc_snapshot import MvccSnapshot

REPLICA_IDENTITIES: Final[dict[str, Literal["default", "nothing", "full", "index"]]] = {
    "d": "default",
    "n": "nothing",
    "f": "full",
    "i": "index",
}

_TABLES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident, c.relkind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
"""
# As text: a cast to name would truncate a longer one.
_NAMED: Final = "WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
# pgoutput flags the columns of the replica identity; a DEFERRABLE primary key is none.
_KEYS: Final = """
SELECT i.indrelid::bigint, a.attname, i.indisprimary, i.indisreplident
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int[]) WITH ORDINALITY AS k(attnum, ordinal)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY(%s::oid[]) AND (i.indisprimary OR i.indisreplident) AND k.ordinal <= i.indnkeyatts
  AND i.indisvalid AND i.indimmediate
"""
# Stored generated columns are sent if the publication says so (since PostgreSQL 18).
IS_SENT: Final = """(a.attgenerated = '' OR a.attgenerated = 's' AND EXISTS (
  SELECT FROM pg_publication p WHERE p.pubname = %(publication)s AND to_jsonb(p) ->> 'pubgencols' = 's'
))"""
_COLUMNS: Final = f"""
SELECT a.attrelid::bigint, a.attname, a.atttypid::bigint, {IS_SENT} FROM pg_attribute a
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""  # noqa: S608  a constant
_LEAVES: Final = f"""
WITH RECURSIVE {BELOW}
SELECT b.root::bigint, b.relid::bigint
FROM below b JOIN pg_class c ON c.oid = b.relid
WHERE b.relid <> b.root AND c.relkind IN ('r', 'f')
ORDER BY b.root, b.relid
"""  # noqa: S608  a constant
# Invalidations are sent after a commit has become visible, so pg_partition_ancestors may be older than the snapshot.
_ANCESTORS: Final = f"""
WITH RECURSIVE ancestors AS (
  SELECT i.inhparent AS oid FROM pg_inherits i WHERE i.inhrelid = %s::oid AND {IS_ATTACHED}
  UNION
  SELECT i.inhparent FROM ancestors a JOIN pg_inherits i ON i.inhrelid = a.oid AND {IS_ATTACHED}
)
SELECT txid_current_snapshot()::text, ARRAY(
  SELECT a.oid::bigint FROM ancestors a JOIN pg_class c ON c.oid = a.oid WHERE c.relkind = 'p'
)
"""  # noqa: S608  a constant

_Key: TypeAlias = tuple[list[str], list[str]]


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table's current state in the catalog. ``relation`` is what pgoutput would send for it.

    ``partitions`` are the leaves, at any depth. ``unsent`` are the generated columns that the publication omits.
    """

    oid: int
    relation: Relation
    is_partitioned: bool = False
    partitions: tuple["TableFacts", ...] = ()
    unsent: tuple[str, ...] = ()


class Catalog:
    """Catalog queries over an ordinary connection; raises ``PostgresUnavailableError`` if that is lost."""

    def __init__(self, connection: Connection, publication: str | None) -> None:
        self._connection = connection
        self._publication = publication

    def table(self, name: TableName) -> TableFacts | None:
        """A table, with its partitions if partitioned; ``None`` if there is none of that name."""
        return self.tables([name]).get(name)

    def tables(self, names: Iterable[TableName]) -> dict[TableName, TableFacts]:
        """The tables of these names, as by :meth:`table`; missing ones are omitted.

        These are several queries, which the caller must run in one snapshot. Their number does not depend on the
        tables'.
        """
        wanted = sorted(set(names))
        columns = [[name[part] for name in wanted] for part in (0, 1)]
        kinds = {row[0]: row[4] for row in rows(self._connection, _TABLES + _NAMED, columns) if row[4] in {"r", "p"}}
        leaves: dict[int, list[int]] = {oid: [] for oid, kind in kinds.items() if kind == "p"}
        for root, leaf in rows(self._connection, _LEAVES, {"oids": list(leaves)}) if leaves else ():
            leaves[root].append(leaf)
        oids = kinds.keys() | {leaf for found in leaves.values() for leaf in found}
        facts = {table.oid: table for table in self._facts(oids)} if oids else {}
        return {facts[oid].relation.table: _with_partitions(facts, oid, leaves.get(oid)) for oid in kinds}

    def ancestors(self, oid: int) -> tuple[frozenset[int], MvccSnapshot]:
        """The OIDs of a table's partitioned ancestors, at any depth, and the snapshot that they were read in."""
        ((snapshot, ancestors),) = rows(self._connection, _ANCESTORS, (oid,))
        return frozenset(ancestors), MvccSnapshot.parse(snapshot)

    def _facts(self, oids: Collection[int]) -> Iterable[TableFacts]:
        ids = list(oids)
        keys: dict[int, _Key] = {oid: ([], []) for oid in ids}
        for oid, name, is_primary, is_identity in rows(self._connection, _KEYS, (ids,)):
            keys[oid][0].extend([name] if is_primary else [])
            keys[oid][1].extend([name] if is_identity else [])
        columns: dict[int, list[tuple[str, int]]] = {oid: [] for oid in ids}
        unsent: dict[int, list[str]] = {oid: [] for oid in ids}
        wanted = {"oids": ids, "publication": self._publication}
        for oid, name, type_oid, is_sent in rows(self._connection, _COLUMNS, wanted):
            if is_sent:
                columns[oid].append((name, type_oid))
            else:
                unsent[oid].append(name)
        for oid, schema, name, identity, _ in rows(self._connection, f"{_TABLES} WHERE c.oid = ANY(%s::oid[])", (ids,)):
            primary_key, index_columns = keys[oid]
            everything = [column for column, _ in columns[oid]]
            sent = {"default": primary_key, "index": index_columns, "nothing": [], "full": everything}
            kind = REPLICA_IDENTITIES[identity]
            found = tuple(Column(column, type_oid, column in sent[kind]) for column, type_oid in columns[oid])
            yield TableFacts(oid, Relation(oid, schema, name, kind, found), unsent=tuple(unsent[oid]))


def _with_partitions(facts: Mapping[int, TableFacts], oid: int, leaves: Collection[int] | None) -> TableFacts:
    table = facts[oid]
    if leaves is None:
        return table
    partitions = tuple(facts[leaf] for leaf in leaves)
    return replace(table, is_partitioned=True, partitions=partitions)
