"""What of a statement goes from a partitioned table to its partitions, at any depth, and back, in ``pg_inherits``.

The server's own functions for that lock tables, or may be older than the statement's snapshot.
"""

from typing import Final

IS_ATTACHED: Final = "coalesce(to_jsonb(i) ->> 'inhdetachpending', 'false') = 'false'"
"""Whether a row ``i`` of ``pg_inherits`` counts. While a partition is being detached concurrently, which is possible
since PostgreSQL 14, it counts as detached: no later query of the table has its rows."""

# UNION, as a table may inherit from several, and the number of ways to it can double with each level.
_BELOW: Final = """
  below AS (
    SELECT w.oid AS root, w.oid AS relid FROM unnest(%(oids)s::oid[]) AS w(oid)
    UNION SELECT b.root, i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.relid {condition}
  )
"""
BELOW: Final = _BELOW.format(condition=f"AND {IS_ATTACHED}")
"""A recursive query ``below``: each of ``oids`` as a ``root``, with itself and all that is attached below it."""
EVER_BELOW: Final = _BELOW.format(condition="")
"""The same, with what is being detached: an open transaction may still have it as a partition."""
