"""``own_casts``: columns whose values a cast of the database's own may turn into texts, so that operators mean others.

Enums and arrays have no operators of their own type. With ``CREATE CAST (mood AS text) … AS IMPLICIT``, PostgreSQL
compares ``mood = 'ok'`` as texts, which the cast's function makes; any cast to text decides what ``mood::text`` is.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from flushtracker.postgres.connection import Connection, rows

# What a column's type is made of: the base type of a domain, the items of an array. 16384 is the first OID of a user's.
_CASTS: Final = """
WITH RECURSIVE made_of(relid, name, oid, domain, item) AS (
  SELECT a.attrelid, a.attname, t.oid, t.typbasetype, CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
  UNION ALL
  SELECT m.relid, m.name, t.oid, t.typbasetype, CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END
  FROM made_of m JOIN pg_type t ON t.oid IN (m.domain, m.item)
)
SELECT DISTINCT ON (m.relid, m.name)
  m.relid::bigint, m.name, format_type(k.castsource, NULL), format_type(k.casttarget, NULL)
FROM made_of m JOIN pg_type t ON t.oid = m.oid AND (t.typtype = 'e' OR t.typcategory = 'A')
JOIN pg_cast k ON k.oid >= 16384 AND k.castsource = m.oid
  AND (k.castcontext = 'i' OR k.casttarget IN ('text'::regtype, 'varchar'::regtype))
ORDER BY m.relid, m.name, k.castsource, k.casttarget
"""


def own_casts(connection: Connection, tables: Collection[int]) -> Mapping[int, Mapping[str, str]]:
    """The columns of these tables, by OID, that such a cast applies to, each with the cast."""
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for oid, name, source, target in rows(connection, _CASTS, (list(tables),)):
        found[oid][name] = f"CAST ({source} AS {target})"
    return found
