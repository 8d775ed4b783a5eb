"""Reads ``TypeBinding``s from the catalog: types that are not built in, with all the types that they are made of."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from flushtracker.postgres.connection import Connection, rows
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
from flushtracker.wal.changes import FIRST_USER_TYPE, TypeKind

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
_KINDS: Final[dict[str, TypeKind]] = {
    "A": "array",
    "e": "enum",
    "d": "domain",
    "c": "composite",
    "r": "range",
    "m": "multirange",
    "b": "base",
}


def read_types(connection: Connection, oids: Iterable[int]) -> dict[int, TypeBinding]:
    """The types with these OIDs and all that they are made of, without those that are built in.

    These are several queries: the caller must give them one snapshot.
    """
    found: dict[int, TypeBinding] = {}
    wanted = {oid for oid in oids if oid >= FIRST_USER_TYPE}
    while wanted:
        for oid, schema, name, kind, parts, attributes in rows(connection, _TYPES, (sorted(wanted),)):
            found[oid] = TypeBinding(oid, schema, name, _KINDS[kind], tuple(parts), attributes)
        parts_of = (part for oid in wanted & found.keys() for part in found[oid].parts)
        wanted = {part for part in parts_of if part >= FIRST_USER_TYPE and part not in found}
    labels: dict[int, list[EnumLabel]] = defaultdict(list)
    enums = [oid for oid, binding in found.items() if binding.kind == "enum"]
    for oid, label_oid, text, version in rows(connection, _LABELS, (enums,)) if enums else ():
        labels[oid].append(EnumLabel(label_oid, text, version))
    return {oid: replace(binding, labels=tuple(labels.get(oid, ()))) for oid, binding in found.items()}
