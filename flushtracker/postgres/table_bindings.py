"""Reads ``TableBinding``s from the catalog, with their types, without locking any table.

The functions that list partitions and views such as ``pg_publication_tables`` lock every table they list, and wait for
other lock holders; plain catalog tables do not.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from flushtracker.errors import PostgresError
from flushtracker.postgres.case_differences import DEFAULT, IS_BYTEWISE, case_differences
from flushtracker.postgres.catalog import IS_SENT
from flushtracker.postgres.connection import SCHEMAS_SINCE, Connection, one_snapshot, rows
from flushtracker.postgres.inheritance import IS_ATTACHED
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import MOST_LEVELS, EnumLabel, TypeBinding, made_of
from flushtracker.wal.changes import FIRST_USER_TYPE, TypeKind

# Each table with its descendants. `attached` lists the transactions that attached it and those above it. A partition is
# fresh if each was attached by the transaction that created it, which the row of its system column ctid (-1) shows. It
# must also have been created as a partition, and not attached by ATTACH, which updates the rows of all columns: earlier
# rows were not sent, unless all tables are published, and may have been written under other column names, or without a
# key. And its file must be its first, whose number is its OID: otherwise it may have been rewritten, or filled while
# unlogged. Or its file is from a TRUNCATE, after which all rows were written while it was logged, because SET LOGGED
# rewrites them: its TOAST table and indexes got their files right after it, while a rewrite first takes two numbers for
# types; and ALTER TABLE has not replaced its TOAST table. DETACH CONCURRENTLY takes effect for queries as soon as it is
# pending, which pg_inherits shows since PostgreSQL 14. Only partitions are followed, which have one parent: inheritance
# children may have several, so the number of paths can double with each level.
#
# `above` are the table and its ancestors, with the transactions that attached each to the next: once one of them was
# detached and attached again, a publication through an ancestor counts as another one.
_MEMBERS: Final = """
WITH RECURSIVE members AS (
  SELECT w.oid AS root, w.oid AS relid, '' AS attached, true AS is_fresh, ARRAY[w.oid] AS path
  FROM unnest(%(oids)s::oid[]) AS w(oid)
  UNION ALL
  SELECT m.root, i.inhrelid, m.attached || '/' || i.xmin, m.is_fresh AND i.xmin::text = a.xmin::text AND EXISTS (
    SELECT FROM pg_attribute c
    WHERE c.attrelid = i.inhrelid AND c.attnum > 0 AND c.xmin::text = a.xmin::text AND c.cmin::text = a.cmin::text
  ), array_append(m.path, i.inhrelid)
  FROM members m
  JOIN pg_class p ON p.oid = m.relid AND p.relkind = 'p'
  JOIN pg_inherits i ON i.inhparent = m.relid AND {is_attached}
  JOIN pg_attribute a ON a.attrelid = i.inhrelid AND a.attnum = -1
), above AS (
  SELECT w.oid AS root, w.oid AS relid, '' AS links FROM unnest(%(oids)s::oid[]) AS w(oid)
  UNION ALL
  SELECT a.root, i.inhparent, a.links || '/' || i.xmin
  FROM above a JOIN pg_inherits i ON i.inhrelid = a.relid JOIN pg_class t ON t.oid = i.inhparent AND t.relkind = 'p'
), above_all AS (
  SELECT root, array_agg(relid) AS relids, array_agg(links) AS links FROM above GROUP BY root
)
SELECT m.root::bigint, c.oid::bigint, n.nspname, c.relname, c.relkind, c.relfilenode::bigint, m.attached,
  m.is_fresh AND (c.relfilenode = c.oid OR file.is_truncated AND (c.reltoastrelid = 0 OR EXISTS (
    SELECT FROM pg_attribute a JOIN pg_attribute x ON x.attrelid = c.reltoastrelid AND x.attnum = -1
    WHERE a.attrelid = c.oid AND a.attnum = -1 AND x.xmin::text = a.xmin::text
  ))), c.relpersistence = 'p' AND c.relkind <> 'f', p.puballtables,
  ARRAY(
    SELECT concat('table ', r.oid, x.links) FROM unnest(ways.relids, ways.links) AS x(relid, links)
    JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = x.relid
  ),
  {schemas},
  EXISTS (
    SELECT FROM unnest(ways.relids, ways.links) AS x(relid, links)
    JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = x.relid
    WHERE to_jsonb(r) ->> 'prqual' IS NOT NULL OR to_jsonb(r) ->> 'prattrs' IS NOT NULL
  ),
  c.relnatts,
  coalesce((
    SELECT d.xmin::text::bigint FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
    AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass
  ), 0),
  c.reltoastrelid::bigint,
  file.is_truncated,
  EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid)
FROM members m
JOIN pg_class c ON c.oid = m.relid
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN above_all ON above_all.root = m.root
LEFT JOIN pg_publication p ON p.pubname = %(publication)s
CROSS JOIN LATERAL (
  SELECT array_cat(above_all.relids, m.path[2:]) AS relids,
    array_cat(above_all.links, array_fill(''::text, ARRAY[cardinality(m.path) - 1])) AS links
) ways
CROSS JOIN LATERAL (
  SELECT EXISTS (
    SELECT FROM pg_index i JOIN pg_class k ON k.oid = i.indexrelid
    WHERE i.indrelid = c.oid
      AND k.relfilenode::bigint - c.relfilenode::bigint BETWEEN 1 AND CASE c.reltoastrelid WHEN 0 THEN 2 ELSE 3 END
  ) AS is_truncated
) file
"""
# Whole schemas can be published since PostgreSQL 15. `schema_since` shows since when table and member are there.
_SCHEMAS: Final = """
  ARRAY(
    SELECT DISTINCT concat('schema ', s.oid, x.links, CASE WHEN x.relid NOT IN (m.root, m.relid) THEN '@' || d.xmin END)
    FROM unnest(ways.relids, ways.links) AS x(relid, links)
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = x.relid AND d.objsubid = 0
      AND d.refclassid = 'pg_namespace'::regclass
    JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = d.refobjid
  )
"""
_NO_SCHEMAS: Final = "ARRAY[]::text[]"
_COLUMNS: Final = f"""
SELECT a.attrelid::bigint, a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, a.xmin::text::bigint,
  coalesce(c.collisdeterministic, true), coalesce(getdatabaseencoding() = 'UTF8' AND ({IS_BYTEWISE}), false),
  a.attcollation::bigint
FROM pg_attribute a
LEFT JOIN pg_collation c ON c.oid = a.attcollation
JOIN pg_database d ON d.datname = current_database()
WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND {IS_SENT}
ORDER BY a.attrelid, a.attnum
"""  # noqa: S608  a constant
# A partitioned table stores no rows, so its partitions are read, whose columns have the same names.
_FILLED: Final = "SELECT attrelid::bigint, attname FROM pg_attribute WHERE attrelid = ANY(%s::oid[]) AND atthasmissing"
# A constraint keeps its OID when its index is rebuilt concurrently. Since PostgreSQL 18, attnotnull may be set although
# rows are not validated yet. An operator class other than the type's default may distinguish values with the same text.
_KEYS: Final = f"""
SELECT i.indrelid::bigint, coalesce(c.oid, i.indexrelid)::bigint, k.names, i.indexrelid::bigint, i.xmin::text::bigint,
  x.relfilenode::bigint, i.indisprimary
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
LEFT JOIN pg_constraint c ON c.conrelid = i.indrelid AND c.conindid = i.indexrelid AND c.contype IN ('p', 'u')
CROSS JOIN LATERAL (
  SELECT array_agg(a.attname::text ORDER BY n.ordinal) AS names, bool_and(a.attnotnull AND {IS_SENT} AND NOT
    EXISTS (
      SELECT FROM pg_constraint v
      WHERE v.conrelid = i.indrelid AND v.contype = 'n' AND NOT v.convalidated AND a.attnum = ANY(v.conkey)
    )
  ) AS are_filled
  FROM unnest(i.indkey::int[]) WITH ORDINALITY AS n(attnum, ordinal)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = n.attnum
  WHERE n.ordinal <= i.indnkeyatts
) k
WHERE i.indrelid = ANY(%(oids)s::oid[])
  AND i.indisunique AND i.indisvalid AND i.indisready AND i.indislive AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL AND k.are_filled AND NOT EXISTS (
    SELECT FROM pg_opclass o JOIN pg_namespace s ON s.oid = o.opcnamespace
    WHERE o.oid = ANY(i.indclass::oid[]) AND NOT o.opcdefault AND s.nspname <> 'pg_catalog'
  )
ORDER BY i.indrelid, i.indisprimary DESC, i.indisreplident DESC, i.indexrelid
"""  # noqa: S608  a constant
# pg_range has a column for multiranges since PostgreSQL 14.
_TYPES: Final = """
SELECT t.oid::bigint, n.nspname, t.typname, CASE WHEN item.typarray = t.oid THEN 'A' ELSE t.typtype::text END,
  (CASE
    WHEN item.typarray = t.oid THEN ARRAY[item.oid]
    WHEN t.typtype = 'd' THEN ARRAY[t.typbasetype]
    WHEN t.typtype = 'c' THEN ARRAY(
      SELECT a.atttypid FROM pg_attribute a
      WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
    )
    ELSE ARRAY(
      SELECT r.rngsubtype FROM pg_range r
      WHERE r.rngtypid = t.oid OR to_jsonb(r) ->> 'rngmultitypid' = t.oid::text
    )
  END)::bigint[],
  coalesce(c.relnatts, 0)
FROM pg_type t
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_type item ON item.oid = t.typelem
LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.oid = ANY(%s::oid[])
"""
_LABELS: Final = """
SELECT enumtypid::bigint, oid::bigint, enumlabel, xmin::text::bigint FROM pg_enum
WHERE enumtypid = ANY(%s::oid[])
ORDER BY enumtypid, enumsortorder
"""
_LEAF_KINDS: Final = frozenset({"r", "f"})
_TYPE_KINDS: Final[dict[str, TypeKind]] = {
    "A": "array",
    "e": "enum",
    "d": "domain",
    "c": "composite",
    "r": "range",
    "m": "multirange",
    "b": "base",
}


def read_bindings(connection: Connection, publication: str | None, oids: Iterable[int]) -> dict[int, TableBinding]:
    """The current tables with these OIDs, by OID; missing ones are omitted.

    Raises:
        PostgresUnavailableError: the connection is lost.
        PostgresError: there is no such publication.
    """
    ids = sorted(oids)
    if not ids:
        return {}
    with one_snapshot(connection):
        return _read(connection, publication, ids)


def read_types(connection: Connection, oids: Iterable[int]) -> dict[int, TypeBinding]:
    """The user types with these OIDs, and all those that they are made of.

    Types nested more than ``MOST_LEVELS`` deep are omitted. These are several queries, which the caller must run in one
    snapshot.
    """
    found: dict[int, TypeBinding] = {}
    wanted = {oid for oid in oids if oid >= FIRST_USER_TYPE}
    for _ in range(MOST_LEVELS):
        if not wanted:
            break
        for oid, schema, name, kind, parts, attributes in rows(connection, _TYPES, (sorted(wanted),)):
            found[oid] = TypeBinding(oid, schema, name, _TYPE_KINDS[kind], tuple(parts), attributes)
        parts_of = (part for oid in wanted & found.keys() for part in found[oid].parts)
        wanted = {part for part in parts_of if part >= FIRST_USER_TYPE and part not in found}
    labels: dict[int, list[EnumLabel]] = defaultdict(list)
    enums = [oid for oid, binding in found.items() if binding.kind == "enum"]
    for oid, label_oid, text, version in rows(connection, _LABELS, (enums,)) if enums else ():
        labels[oid].append(EnumLabel(label_oid, text, version))
    return {oid: replace(binding, labels=tuple(labels.get(oid, ()))) for oid, binding in found.items()}


def _read(connection: Connection, publication: str | None, ids: list[int]) -> dict[int, TableBinding]:
    has_schemas = connection.server_version >= SCHEMAS_SINCE
    members: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    statement = _MEMBERS.format(is_attached=IS_ATTACHED, schemas=_SCHEMAS if has_schemas else _NO_SCHEMAS)
    wanted = {"oids": ids, "publication": publication}
    for row in rows(connection, statement, wanted):
        if row[9] is None and publication is not None:
            raise PostgresError(f"there is no publication {publication}")
        members[row[0]].append(row)
    # A partition may be one of these tables itself, and also a member of others.
    roots = defaultdict[int, list[int]](list)
    for oid, found in members.items():
        for row in found:
            roots[row[1]].append(oid)
    filled = {(root, name) for oid, name in rows(connection, _FILLED, (list(roots),)) for root in roots[oid]}
    columns: dict[int, list[ColumnBinding]] = defaultdict(list)
    found_columns = rows(connection, _COLUMNS, wanted)
    differences = case_differences(connection, {DEFAULT, *(column[-1] for column in found_columns)})
    for oid, number, name, type_oid, modifier, version, is_deterministic, is_bytewise, collation in found_columns:
        own = differences.get(collation) if collation != DEFAULT else None
        facts = (oid, name) in filled, is_deterministic, own, is_bytewise
        columns[oid].append(ColumnBinding(number, name, type_oid, modifier, version, *facts))
    keys: dict[int, list[KeyBinding]] = defaultdict(list)
    for oid, key_oid, names, *index in rows(connection, _KEYS, wanted):
        keys[oid].append(KeyBinding(key_oid, tuple(names), *index))
    types = read_types(connection, {column.type_oid for found in columns.values() for column in found})
    bindings = (_binding(oid, found, tuple(keys[oid]), tuple(columns[oid]), types) for oid, found in members.items())
    return {binding.oid: replace(binding, case_differences=differences[DEFAULT]) for binding in bindings}


def _binding(
    oid: int,
    members: list[tuple[Any, ...]],
    keys: tuple[KeyBinding, ...],
    columns: tuple[ColumnBinding, ...],
    types: Mapping[int, TypeBinding],
) -> TableBinding:
    (root,) = (member for member in members if member[1] == oid)
    is_partitioned = root[4] == "p"
    leaves = sorted((member for member in members if member[1] != oid and member[4] in _LEAF_KINDS), key=lambda m: m[1])
    return TableBinding(
        oid=oid,
        table=(root[2], root[3]),
        keys=keys,
        columns=columns,
        partitions=tuple(_partition(leaf) for leaf in leaves) if is_partitioned else (),
        storage=root[5],
        attributes=root[13],
        schema_since=root[14],
        is_partitioned=is_partitioned,
        is_logged=is_partitioned or root[8],
        has_children=not is_partitioned and root[17],
        published_by=_published_by(root),
        is_filtered=root[12],
        types=made_of([column.type_oid for column in columns], types),
        toast=root[15],
        is_truncated=root[16],
    )


def _partition(member: tuple[Any, ...]) -> PartitionBinding:
    return PartitionBinding(
        oid=member[1],
        table=(member[2], member[3]),
        storage=member[5],
        attached=member[6],
        schema_since=member[14],
        is_logged=member[8],
        published_by=_published_by(member),
        is_filtered=member[12],
        may_have_rows=not member[7],
        toast=member[15],
        is_truncated=member[16],
    )


def _published_by(member: tuple[Any, ...]) -> tuple[str, ...]:
    return (*(["all tables"] if member[9] else []), *sorted(member[10]), *sorted(member[11]))
