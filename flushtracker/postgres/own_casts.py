"""``own_casts``: columns to which a user-defined cast to text applies, which changes what operators mean.

Enums and arrays have no operators of their own type. With ``CREATE CAST (mood AS text) … AS IMPLICIT``, PostgreSQL
compares ``mood = 'ok'`` as texts, using the cast's function; any cast to text determines ``mood::text``.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from flushtracker.postgres.connection import Connection, rows

# What a column's type is made of: the base type of a domain, the elements of an array. 16384 is the first user OID.
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
    """The columns of these tables, by OID, to which such a cast applies, each with the cast."""
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for oid, name, source, target in rows(connection, _CASTS, (list(tables),)):
        found[oid][name] = f"CAST ({source} AS {target})"
    return found
