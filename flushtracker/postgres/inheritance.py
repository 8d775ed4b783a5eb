"""SQL that walks ``pg_inherits`` from a partitioned table to its partitions, at any depth, and back.

The server's own functions for that lock tables, or may be older than the statement's snapshot.
"""

from typing import Final

IS_ATTACHED: Final = "coalesce(to_jsonb(i) ->> 'inhdetachpending', 'false') = 'false'"
"""Whether a row ``i`` of ``pg_inherits`` counts. A partition that is being detached concurrently (PostgreSQL 14 and
later) counts as detached: later queries of the table do not see its rows.
"""

# UNION, because a table may inherit from several, and the number of paths to it can double with each level.
_BELOW: Final = """
  below AS (
    SELECT w.oid AS root, w.oid AS relid FROM unnest(%(oids)s::oid[]) AS w(oid)
    UNION SELECT b.root, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.relid {condition}
  )
"""
BELOW: Final = _BELOW.format(condition=f"AND {IS_ATTACHED}")
"""A recursive query ``below``: each of ``oids`` as a ``root``, with itself and everything attached below it."""
EVER_BELOW: Final = _BELOW.format(condition="")
"""The same, including partitions being detached: an open transaction may still see them as partitions."""
