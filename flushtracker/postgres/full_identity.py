"""``FullIdentity``: gives tables REPLICA IDENTITY FULL, where that breaks no statement of an application.

ALTER TABLE takes an ACCESS EXCLUSIVE lock, and everything else that needs the table queues behind the request for it.
So a request ends after ``LOCK_MS``, and is repeated much later. All of an attempt is one message to the server, which
never keeps the lock while it waits for this process.

PostgreSQL refuses UPDATE and DELETE on a table with FULL if *any* publication that it is in has a list of columns for
it (since 15), or omits a generated column (since 18). Such tables are left alone. Nothing is ever taken back, because
others may rely on it.
"""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import pq, sql

from flushtracker.errors import FlushtrackerError, IdentityError, PostgresError, listed, printable
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.identity_remedies import GENERATED_SINCE
from flushtracker.postgres.raw_names import raw_name, readable_rows
from flushtracker.shapes.table_binding import dotted
from flushtracker.wal.changes import TableName

logger = logging.getLogger(__name__)

LOCK_MS: Final = 100
"""An application may have to wait this long for an attempt that does not get its lock."""
_NEXT_LOCK_MS: Final = 10
"""Once a table could not be locked, the others of the same round get this time: one owner may have locked them all."""
_ROUND_S: Final = 2.0
"""No other attempt begins after this time, because the stream waits meanwhile; the rest is left to the next round."""
_RETRY_S: Final = 30.0
_LISTS_SINCE: Final = 150_000
"""The first version of PostgreSQL in which a publication may have a list of columns."""
_LEAVES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text, c.relkind = 'r' AND c.relpersistence = 'p',
  pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(n.oid, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""
# A publication that is missing is created with `publish_generated_columns = stored`.
_REFUSING: Final = """
WITH RECURSIVE above AS (
  SELECT w.oid AS leaf, w.oid AS relid FROM unnest({oids}::oid[]) AS w(oid)
  UNION SELECT a.leaf, i.inhparent FROM above a JOIN pg_class c ON c.oid = a.relid AND c.relispartition
  JOIN pg_inherits i ON i.inhrelid = a.relid
), publication AS (
  SELECT oid, pubname, puballtables AS has_all, to_jsonb(p) ->> 'pubgencols' AS sends FROM pg_publication p
  WHERE pubupdate OR pubdelete
  UNION ALL SELECT 0::oid, {publication}, false, 's' WHERE NOT EXISTS (
    SELECT FROM pg_publication WHERE pubname = {publication}
  )
)
SELECT DISTINCT a.leaf::bigint, convert_to(p.pubname::text, getdatabaseencoding())
FROM above a JOIN pg_class c ON c.oid = a.relid CROSS JOIN publication p
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = a.relid
WHERE r.prattrs IS NOT NULL {or_unsent}
"""
_OR_UNSENT: Final = """
OR (p.has_all OR p.pubname = {publication} OR r.oid IS NOT NULL OR EXISTS (
  SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
)) AND EXISTS (
  SELECT FROM pg_attribute g WHERE g.attrelid = a.leaf AND g.attnum > 0 AND NOT g.attisdropped
    AND g.attgenerated <> '' AND NOT (g.attgenerated = 's' AND p.sends = 's')
)
"""
# Before the lock is there, the table may have been renamed, or listed by another publication.
_ALTER: Final = """
SET LOCAL lock_timeout = {lock_ms}; SET LOCAL synchronous_commit = local;
ALTER TABLE ONLY {table} REPLICA IDENTITY FULL; DO {check}
"""
_CHECK: Final = """
BEGIN
  IF NOT EXISTS (SELECT FROM pg_class WHERE oid = {oid} AND relreplident = 'f') THEN
    RAISE 'it was renamed meanwhile';
  END IF;
  IF {is_refused} THEN
    RAISE 'a publication would refuse its updates meanwhile';
  END IF;
END
"""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A table that may store rows. ``is_table``: it is an ordinary one, and not temporary or unlogged."""

    oid: int
    table: TableName
    identity: str
    is_table: bool
    is_own: bool


class FullIdentity:
    """Over an ordinary connection, for tables of the publication ``name``, which may be missing.

    Every method raises ``PostgresUnavailableError`` if the connection is lost.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._retry_at_s: dict[int, float] = {}
        self._logged: dict[int, str] = {}
        self.waiting: set[int] = set()
        """The OIDs of the tables that can be altered once they can be locked, or in the next round."""

    def give(self, leaves: Collection[int]) -> bool:
        """Set it on the tables with these OIDs, each on its own; return whether it was set on any.

        Why it was not set on others is logged. Call it again at intervals: after a failure it waits for ``_RETRY_S``.
        """
        started_s = time.monotonic()
        due = sorted(oid for oid in leaves if self._is_due(oid))
        leaves_due = readable_rows(self._connection, _LEAVES, due)
        found = [_Leaf(oid, (schema, name), *leaf) for oid, schema, name, *leaf in leaves_due]
        refusing = self._refusing([leaf.oid for leaf in found])
        lock_ms, given = LOCK_MS, False
        self._retry_at_s = {oid: at_s for oid, at_s in self._retry_at_s.items() if at_s > started_s}
        for leaf in found:
            self.waiting.discard(leaf.oid)
            if leaf.identity == "f":
                continue
            if (reason := _refusal(leaf, refusing.get(leaf.oid, ()))) is None:
                if time.monotonic() - started_s > _ROUND_S:
                    self.waiting.add(leaf.oid)
                    continue
                reason = self._alter(leaf, lock_ms)
                if reason is None:
                    given = True
                    continue
                self.waiting.add(leaf.oid)
                lock_ms = _NEXT_LOCK_MS
            self._retry_at_s[leaf.oid] = time.monotonic() + _RETRY_S
            self._log(leaf, reason)
        return given

    def can_give(self, leaves: Collection[int]) -> bool:
        """Whether :meth:`give` would try to alter one of the tables now."""
        return any(oid in self.waiting and self._is_due(oid) for oid in leaves)

    def _is_due(self, oid: int) -> bool:
        return self._retry_at_s.get(oid, 0.0) <= time.monotonic()

    def _refusing(self, oids: Collection[int]) -> Mapping[int, list[str]]:
        """By OID, the publications with which the server would refuse updates or deletes under FULL."""
        found: dict[int, list[str]] = {}
        if oids and self._connection.server_version >= _LISTS_SINCE:
            for oid, name in rows(self._connection, self._refusing_query(oids).as_string(self._connection)):
                found.setdefault(oid, []).append(raw_name(self._connection, name) or "?")
        return found

    def _refusing_query(self, oids: Collection[int]) -> sql.Composed:
        publication = sql.Literal(self._name)
        checks = self._connection.server_version >= GENERATED_SINCE
        unsent = sql.SQL(_OR_UNSENT).format(publication=publication) if checks else sql.SQL("")
        return sql.SQL(_REFUSING).format(oids=sql.Literal([*oids]), publication=publication, or_unsent=unsent)

    def _alter(self, leaf: _Leaf, lock_ms: int) -> str | None:
        connection = self._connection
        has_lists = connection.server_version >= _LISTS_SINCE
        refusing = self._refusing_query([leaf.oid]) if has_lists else sql.SQL("SELECT WHERE false")
        is_refused = sql.SQL("EXISTS ({})").format(refusing)
        check = sql.SQL(_CHECK).format(oid=sql.Literal(leaf.oid), is_refused=is_refused).as_string(connection)
        table = sql.Identifier(*leaf.table)
        statement = sql.SQL(_ALTER).format(lock_ms=sql.Literal(lock_ms), table=table, check=sql.Literal(check))
        try:
            rows(connection, statement.as_string(connection))
        except PostgresError as error:
            # A lock timeout leaves the connection usable.
            if connection.closed or connection.info.transaction_status == pq.TransactionStatus.UNKNOWN:
                raise
            return str(error)
        self._logged.pop(leaf.oid, None)
        logger.info("replica identity set to FULL table=%s; nothing takes it back", dotted(leaf.table))
        return None

    def _log(self, leaf: _Leaf, reason: str) -> None:
        if self._logged.get(leaf.oid) != reason:
            self._logged[leaf.oid] = reason
            name = dotted(leaf.table)
            logger.warning("replica identity not set table=%s reason=%s retry_in_s=%.0f", name, reason, _RETRY_S)


def lacking_leaves(error: FlushtrackerError) -> frozenset[int]:
    """The tables, by OID, whose replica identity is all that is wrong with a shape; empty if something else is."""
    faults = (error, *error.also)
    if not all(isinstance(each, IdentityError) for each in faults):
        return frozenset()
    return frozenset(leaf for each in faults if isinstance(each, IdentityError) for leaf in each.leaves)


def _refusal(leaf: _Leaf, refusing: Collection[str]) -> str | None:
    if not leaf.is_table:
        return "it is no ordinary table, or is unlogged"
    if not leaf.is_own:
        return "capture's role is not the owner of the table, or may not use its schema"
    if refusing:
        names = printable(listed(sorted(refusing)))
        return (
            f"PostgreSQL would refuse its updates and deletes under FULL, because publication {names} has a list of "
            "columns for it, or omits a generated column"
        )
    return None
