"""Composes the statements that give a table a replica identity with certain columns.

Which statements work depends on the table. FULL has every column, but since PostgreSQL 18 the server refuses updates
under FULL if the publication omits a generated column. An index can be the identity if it is unique, valid, immediate
and not partial, and all of its columns are NOT NULL and sent. A *leaf* is a table that stores rows: the table itself,
or each of its partitions, which have their own identities.

The proposed identity keeps the columns of the current one, so that no other shape on the table loses any. No query here
locks a table.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flushtracker.postgres.catalog import IS_SENT
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.raw_names import RAW, raw_name
from flushtracker.shapes.item_key import quoted, sql_table
from flushtracker.wal.changes import TableName

GENERATED_SINCE: Final = 180_000
"""The first version of PostgreSQL in which an identity must not have unsent generated columns."""
_MOST_SINGLE: Final = 3
"""Up to this number of leaves, each gets its own statements; more are altered by one DO block."""
IDENTITY_INDEX: Final = "replica_identity_"
"""A new index has this name, followed by the table's OID to make it unique."""
_TABLES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""
# An index needs a B-tree operator class for the type or its storage type. All enums, ranges and multiranges have one,
# arrays if their elements do, and domains if their base types do.
_COLUMNS: Final = f"""
SELECT a.attrelid::bigint, a.attname, {IS_SENT}, a.attgenerated::text, a.attnotnull AND NOT EXISTS (
  SELECT FROM pg_constraint v
  WHERE v.conrelid = a.attrelid AND v.contype = 'n' AND NOT v.convalidated AND a.attnum = ANY(v.conkey)
), a.attlen = -1, EXISTS (
  WITH RECURSIVE made_of AS (
    SELECT t.* FROM pg_type t WHERE t.oid = a.atttypid
    UNION ALL SELECT t.* FROM made_of m JOIN pg_type t
    ON t.oid = CASE WHEN m.typtype = 'd' THEN m.typbasetype WHEN m.typcategory = 'A' THEN m.typelem END
  )
  SELECT FROM made_of m WHERE m.typtype <> 'd' AND m.typcategory <> 'A' AND (m.typtype IN ('e', 'r', 'm') OR EXISTS (
    SELECT FROM pg_opclass o JOIN pg_am h ON h.oid = o.opcmethod AND h.amname = 'btree'
    WHERE o.opcdefault AND (o.opcintype = m.oid OR EXISTS (
      SELECT FROM pg_cast k WHERE k.castsource = m.oid AND k.casttarget = o.opcintype AND k.castmethod = 'b'
    ))
  ))
)
FROM pg_attribute a
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum
"""  # noqa: S608  a constant
_INDEXES: Final = f"""
SELECT i.indrelid::bigint, {RAW.format("x.relname")}, i.indisprimary, i.indisreplident, ARRAY(
  SELECT a.attname::text FROM unnest(i.indkey::int[]) WITH ORDINALITY AS k(attnum, ordinal)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.ordinal <= i.indnkeyatts
  ORDER BY k.ordinal
)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
WHERE i.indrelid = ANY(%s::oid[]) AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL
ORDER BY i.indrelid, i.indisprimary DESC, i.indnkeyatts, i.indexrelid
"""  # noqa: S608  a constant
_LEAVES: Final = (
    "DECLARE leaf record; BEGIN FOR leaf IN SELECT c.oid, c.oid::regclass AS name FROM pg_partition_tree({root}) t "
    "JOIN pg_class c ON c.oid = t.relid WHERE c.relkind = 'r' AND c.relreplident IN ({before}) "
    "LOOP {statements} END LOOP; END"
)
_ALTER_LEAF: Final = "EXECUTE format('ALTER TABLE %s REPLICA IDENTITY {clause}', leaf.name);"
_INDEX_LEAF: Final = (
    f"EXECUTE format('CREATE UNIQUE INDEX {IDENTITY_INDEX}%s ON %s (%s)', leaf.oid, leaf.name, {{columns}}); "
    f"EXECUTE format('ALTER TABLE %s REPLICA IDENTITY USING INDEX {IDENTITY_INDEX}%s', leaf.name, leaf.oid);"
)


@dataclass(frozen=True, slots=True)
class Remedy:
    """``statements`` to run, empty if none help. ``otherwise`` has clauses about alternatives, or what to consider."""

    statements: tuple[str, ...]
    otherwise: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", or ".join(filter(None, ("; ".join(self.statements), *self.otherwise)))


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    is_sent: bool
    generated: str
    is_filled: bool
    is_long: bool
    has_order: bool


@dataclass(frozen=True, slots=True)
class _Index:
    name: str
    is_primary: bool
    is_identity: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """``unsent`` are the columns that the server does not allow in an identity, because they are not sent.

    ``usable`` are the indexes that may become the identity.
    """

    oid: int
    table: TableName
    identity: str
    columns: Mapping[str, _Column]
    unsent: tuple[_Column, ...]
    usable: tuple[_Index, ...]
    indexes: tuple[_Index, ...]

    def kept(self, needed: Collection[str]) -> dict[str, None]:
        """The columns of the new identity: those of the current one, then the others that are ``needed``."""
        now = [i for i in self.indexes if (i.is_primary if self.identity == "d" else i.is_identity)]
        columns = now[0].columns if now and self.identity in "di" else ()
        return dict.fromkeys([name for name in columns if self._fits(name)] + sorted(needed))

    def existing(self, needed: Collection[str]) -> _Index | None:
        """The smallest usable index that has all columns of the new identity."""
        return next((index for index in self.usable if self.kept(needed).keys() <= set(index.columns)), None)

    def new_index(self, needed: Collection[str]) -> tuple[str, ...] | None:
        """The columns of a unique index to create; ``None`` if no such index is possible."""
        if not self.usable:
            return None
        found = tuple(dict.fromkeys([*self.usable[0].columns, *self.kept(needed)]))
        return found if all(name in self.columns and self._fits(name) for name in found) else None

    def _fits(self, name: str) -> bool:
        column = self.columns[name]
        return column.is_filled and column.has_order and column not in self.unsent


@dataclass(frozen=True, slots=True)
class _Way:
    """How to give a leaf its identity: ``clause`` follows REPLICA IDENTITY.

    ``columns``, if any, are those of a unique index to create first; ``before`` are other statements to run first.
    """

    clause: str
    columns: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


class IdentityRemedies:
    """Finds remedies over an ordinary connection. Without a ``publication``, generated columns count as unsent."""

    def __init__(self, connection: Connection, publication: str | None) -> None:
        self._connection = connection
        self._publication = publication
        self._leaves: dict[int, _Leaf] = {}

    def read(self, leaves: Collection[int]) -> None:
        """Read many leaves at once; :meth:`of` then takes them as they were."""
        self._leaves |= {leaf.oid: leaf for leaf in self._read(leaves)}

    def of(self, root: TableName, leaves: Collection[int], needed: Collection[str]) -> Remedy:
        """The remedy that gives each of the ``leaves`` of ``root``, by OID, an identity with the ``needed`` columns."""
        known = [self._leaves[oid] for oid in leaves if oid in self._leaves]
        found = sorted(known, key=lambda leaf: leaf.table) if len(known) == len(leaves) else self._read(leaves)
        for find in (self._existing, self._full, self._new_index, self._stored):
            ways = [way for leaf in found if (way := find(leaf, needed)) is not None]
            if ways and len(ways) == len(found):
                otherwise = self._otherwise(found, ways, needed) if ways[0].columns else ()
                return Remedy(self._statements(root, found, ways), otherwise)
        return Remedy((), (self._obstacle(found, needed),))

    def _existing(self, leaf: _Leaf, needed: Collection[str]) -> _Way | None:
        if (index := leaf.existing(needed)) is None:
            return None
        return _Way("DEFAULT" if index.is_primary else f"USING INDEX {quoted(index.name)}")

    def _full(self, leaf: _Leaf, _needed: Collection[str]) -> _Way | None:
        return None if leaf.unsent else _Way("FULL")

    def _new_index(self, leaf: _Leaf, needed: Collection[str]) -> _Way | None:
        if not needed or (columns := leaf.new_index(needed)) is None:
            return None
        return _Way(f"USING INDEX {IDENTITY_INDEX}{leaf.oid}", columns)

    def _stored(self, leaf: _Leaf, _needed: Collection[str]) -> _Way | None:
        if self._publication is None or any(column.generated != "s" for column in leaf.unsent):
            return None
        return _Way("FULL", before=(self._send_generated(),))

    def _statements(self, root: TableName, leaves: Sequence[_Leaf], ways: Sequence[_Way]) -> tuple[str, ...]:
        """Statements for each leaf, or one DO block for many leaves that get the same identity."""
        before = dict.fromkeys(statement for way in ways for statement in way.before)
        columns = {self._listed(way.columns) for way in ways}
        clauses = {"" if way.columns else way.clause for way in ways}
        if len(leaves) <= _MOST_SINGLE or len(columns) > 1 or not clauses <= {"", "FULL", "DEFAULT"}:
            return *before, *(each for leaf, way in zip(leaves, ways, strict=True) for each in self._of(leaf, way))
        statements = _ALTER_LEAF.format(clause=ways[0].clause)
        if ways[0].columns:
            statements = _INDEX_LEAF.format(columns=_literal(columns.pop()))
        return *before, self._block(root, leaves, statements)

    def _of(self, leaf: _Leaf, way: _Way) -> Iterator[str]:
        table = sql_table(leaf.table)
        if way.columns:
            yield f"CREATE UNIQUE INDEX {IDENTITY_INDEX}{leaf.oid} ON {table} ({self._listed(way.columns)})"
        yield f"ALTER TABLE {table} REPLICA IDENTITY {way.clause}"

    def _block(self, root: TableName, leaves: Iterable[_Leaf], statements: str) -> str:
        before = ", ".join(sorted({f"'{leaf.identity}'" for leaf in leaves}))
        body = _LEAVES.format(root=_literal(sql_table(root)), before=before, statements=statements)
        tag = next(tag for tag in (f"$do{n or ''}$" for n in range(len(body))) if tag not in body)
        return f"DO {tag} {body} {tag}"

    def _otherwise(self, leaves: Sequence[_Leaf], ways: Sequence[_Way], needed: Collection[str]) -> tuple[str, ...]:
        """Alternatives to a new index, also for when creating it fails."""
        found = []
        if all(self._stored(leaf, needed) for leaf in leaves):
            found.append(f"REPLICA IDENTITY FULL after {self._send_generated()}, which may end shapes")
        if long := [name for name in ways[0].columns if leaves[0].columns[name].is_long]:
            found.append(f"no index if its values ({', '.join(long)}) may have more than 2704 bytes together")
        return tuple(found)

    def _obstacle(self, leaves: Sequence[_Leaf], needed: Collection[str]) -> str:
        reasons = []
        leaf = next((each for each in leaves if each.unsent), None)
        if leaf is not None:
            names = ", ".join(column.name for column in leaf.unsent)
            reasons.append(f"REPLICA IDENTITY FULL would have generated columns that are not sent ({names})")
        if not needed or any(not each.usable for each in leaves):
            reasons.append(f"add a primary key: ALTER TABLE {sql_table(leaves[0].table)} ADD PRIMARY KEY (…)")
        else:
            names = ", ".join(sorted(name for name in needed if any(not each._fits(name) for each in leaves)))
            reasons.append(f"an index cannot, because {names} may be NULL, has no order, or is not sent")
        return ", and ".join(reasons)

    def _read(self, oids: Collection[int]) -> list[_Leaf]:
        wanted = {"oids": list(oids), "publication": self._publication}
        checks = self._connection.server_version >= GENERATED_SINCE
        columns, indexes = defaultdict[int, list[_Column]](list), defaultdict[int, list[_Index]](list)
        for oid, *column in rows(self._connection, _COLUMNS, wanted):
            columns[oid].append(_Column(*column))
        for oid, raw, is_primary, is_identity, names in rows(self._connection, _INDEXES, (list(oids),)):
            if (index := raw_name(self._connection, raw)) is not None:
                indexes[oid].append(_Index(index, is_primary, is_identity, tuple(names)))
        leaves = []
        for oid, schema, name, identity in rows(self._connection, _TABLES, (list(oids),)):
            by_name = {column.name: column for column in columns[oid]}
            unsent = tuple(column for column in columns[oid] if checks and not column.is_sent)
            fit = {column.name for column in columns[oid] if column.is_filled and column not in unsent}
            usable = tuple(index for index in indexes[oid] if set(index.columns) <= fit)
            leaves.append(_Leaf(oid, (schema, name), identity, by_name, unsent, usable, tuple(indexes[oid])))
        return sorted(leaves, key=lambda leaf: leaf.table)

    def _send_generated(self) -> str:
        name = quoted(self._publication or "")
        return f"ALTER PUBLICATION {name} SET (publish_generated_columns = stored)"

    def _listed(self, columns: Iterable[str]) -> str:
        return ", ".join(map(quoted, columns))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
