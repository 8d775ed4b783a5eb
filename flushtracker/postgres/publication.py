"""``Publication``: controls which tables the server sends. A *managed* publication has exactly the tables of the
shapes.

PostgreSQL refuses UPDATE and DELETE on a published table that has no replica identity, so publishing a table can break
its application. Capture therefore only adds tables that have shapes and a replica identity.

A publication is managed if its comment says so and names the slot. ``--create`` writes the comment when it creates the
publication. Any other publication is only read, never altered.

- Adding a table needs the privileges of the owners of the publication and of the table. Without them, and for a table
  without a replica identity, :meth:`Publication.publish` returns the statement that an administrator must run.
- A table is removed when no shape needs it, and only if this role could add it again.
- Only the process that reads the slot may remove tables. A process that has lost the slot without noticing must not do
  so after another one has added shapes. So each of them first writes the comment, which locks the publication.
  :meth:`Publication.hold` waits for an earlier process that is altering it. Later attempts of that process find that
  its stream no longer holds the slot. Only an owner can hold that lock; any role could hold an advisory lock.
"""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from psycopg import pq

from flushtracker.errors import PostgresError, PostgresUnavailableError, listed
from flushtracker.postgres.connection import Connection, rows
from flushtracker.postgres.full_identity import FullIdentity
from flushtracker.postgres.left_out import PUBLISHES_SINCE
from flushtracker.postgres.raw_names import readable_rows
from flushtracker.postgres.replica_identity import (
    identity_reason,
    leaves_without_identity,
    tables_without_identity,
    without_identity,
)
from flushtracker.shapes.item_key import quoted, sql_table
from flushtracker.shapes.table_binding import dotted
from flushtracker.shapes.unpublished import Unpublished
from flushtracker.wal.changes import TableName

logger = logging.getLogger(__name__)

_MANAGED: Final = "managed by flushtracker capture for slot "
_FACTS: Final = """
SELECT oid::bigint || '/' || xmin, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot, oid::bigint,
  pg_has_role(pubowner, 'USAGE'), coalesce(obj_description(oid, 'pg_publication'), ''), pg_is_in_recovery()
FROM pg_publication WHERE pubname = %s
"""
_TABLES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, pg_has_role(c.relowner, 'USAGE') AND has_schema_privilege(n.oid, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""
# A table is also needed by the shapes on its partitions, which may be published only through it.
_UNUSED: Final = """
WITH RECURSIVE used AS (
  SELECT w.oid AS relid FROM unnest(%(used)s::oid[]) AS w(oid)
  UNION SELECT i.inhparent FROM used u JOIN pg_inherits i ON i.inhrelid = u.relid
)
SELECT r.prrelid::bigint FROM pg_publication_rel r
WHERE r.prpubid = %(publication)s AND r.prrelid NOT IN (SELECT relid FROM used) ORDER BY r.prrelid
"""
# The table's lock conflicts with VACUUM and schema changes, not with row changes. A process stopped inside its
# transaction must not keep the lock, and an absent synchronous standby must not delay the stream.
_SETTINGS: Final = """
SET LOCAL lock_timeout = {lock_ms}; SET LOCAL synchronous_commit = local;
SET LOCAL idle_in_transaction_session_timeout = '10s'
"""
_LOCK_MS: Final = 2_000
_NEXT_LOCK_MS: Final = 20
"""Once a table could not be altered, the others of the same round get this time: one owner may have locked them all."""
_HAS_TABLE: Final = """
SELECT EXISTS (
  SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
  WHERE p.pubname = %s AND r.prrelid = %s::oid
)
"""
_HOLDER: Final = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
_RETRY_S: Final = 30.0
"""A table that could not be locked is retried after this time, because each attempt delays the stream."""
_MOST_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class _Facts:
    """The current publication. ``is_own``: this role has the privileges of its owner."""

    version: str
    publishes_all: bool
    via_root: bool
    oid: int
    is_own: bool
    comment: str
    is_standby: bool


class Publication:
    """The publication of one slot, over an ordinary connection; raises ``PostgresUnavailableError`` if that is lost."""

    def __init__(self, connection: Connection, name: str, slot: str, *, sets_identities: bool = False) -> None:
        self._connection = connection
        self._name = name
        self._slot = slot
        self._stream_pid: int | None = None
        self._full = FullIdentity(connection, name) if sets_identities else None
        self._lock_ms = _LOCK_MS
        # The tables whose last attempt failed: when to retry, and why it failed.
        self._retry_at_s: dict[int, tuple[float, str]] = {}
        self._left: set[int] = set()
        """The unneeded tables that cannot be removed, which was logged."""

    def check(self) -> str:
        """Return the publication's version, which changes when it is altered, but not when tables are added or removed.

        Raises:
            PostgresError: it does not exist, does not publish every operation, or is managed for another slot.
        """
        facts, name = self._facts(), quoted(self._name)
        if facts is None:
            raise PostgresError(f"there is no publication {self._name}; --create creates it")
        if not facts.publishes_all:
            raise PostgresError(
                f"publication {self._name} does not publish every operation; "
                f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
            )
        if facts.via_root:
            raise PostgresError(
                f"publication {self._name} publishes partitions as their root, which omits a TRUNCATE of a partition; "
                f"ALTER PUBLICATION {name} SET (publish_via_partition_root = false)"
            )
        if facts.comment.startswith(_MANAGED) and not self._is_managed(facts):
            raise PostgresError(
                f"publication {self._name} is managed by flushtracker capture for slot "
                f"{facts.comment.removeprefix(_MANAGED)}, which takes tables out of it; name another one in "
                f"capture.publication, or if that slot is gone: {self._mark()}"
            )
        return facts.version

    def create(self, tables: Collection[TableName]) -> bool:
        """Create it, managed and without tables, if it is missing; return whether it was.

        Raises:
            PostgresError: this role may not; the message has the statement to create it with ``tables``.
        """
        if self._facts() is not None:
            return False
        try:
            rows(self._connection, f"{create_statement(self._connection, self._name)}; {self._mark()}")
        except PostgresUnavailableError:
            raise
        except PostgresError as error:
            raise PostgresError(
                f"publication {self._name} cannot be created: {error}; allow this role CREATE on the database, or run "
                f"as the tables' owner or superuser: {create_statement(self._connection, self._name, tables)}"
            ) from error
        return True

    def hold(self, stream_pid: int) -> None:
        """Note that this process's stream, the server's process ``stream_pid``, holds the slot, so it may remove
        tables.
        """
        facts = self._facts()
        if facts is not None and self._is_managed(facts) and not facts.is_standby:
            self._wait_for_others()
        self._stream_pid = stream_pid

    def _wait_for_others(self) -> None:
        """Lock and release the publication. For a role that may not comment on it, even the refusal comes after the
        wait.
        """
        rows(self._connection, "BEGIN")
        try:
            rows(self._connection, self._mark())
        except PostgresUnavailableError:
            raise
        except PostgresError as error:
            logger.debug("publication is another role's publication=%s reason=%s", self._name, error)
        finally:
            if not self._connection.closed:
                rows(self._connection, "ROLLBACK")

    def warn_of_refused_changes(self) -> None:
        """Log the published tables without a replica identity: PostgreSQL refuses their updates and deletes."""
        names = tables_without_identity(self._connection, self._name)
        if names:
            logger.warning(
                "publication breaks applications: PostgreSQL refuses UPDATE and DELETE on published tables without a "
                "replica identity publication=%s tables=%d names=%s; give them one, or publish single tables",
                *(self._name, len(names), listed([dotted(name) for name in names], _MOST_LISTED)),
            )

    def publish(self, oids: Mapping[int, Collection[str]]) -> dict[int, Unpublished]:
        """Add tables to a managed publication; return the reasons for those that were not added, by OID.

        ``oids`` maps to the columns that shapes must know of old rows.
        """
        tables, self._lock_ms = self._tables(oids), _LOCK_MS
        self.give_identities(self._without_identity(tables))
        obstacles = self._obstacles(oids, tables)
        for oid in sorted(tables.keys() - obstacles.keys()):
            name, _ = tables[oid]
            reason = self._postponed(oid)
            if reason is None and (reason := self._alter("ADD", oid, name)) is None:
                logger.info("table added to the publication table=%s", dotted(name))
            else:
                obstacles[oid] = Unpublished(reason, self._statement("ADD", name))
        return obstacles

    def can_publish(self, oids: Collection[int]) -> bool:
        """Whether :meth:`publish` would try to add one of the tables."""
        due = {oid for oid in oids if self._postponed(oid) is None}
        tables = self._tables(due)
        is_any_free = bool(due - self._obstacles(dict.fromkeys(due, ()), tables).keys())
        return is_any_free or (self._full is not None and self._full.can_give(self._without_identity(tables)))

    def give_identities(self, leaves: Collection[int]) -> bool:
        """Set REPLICA IDENTITY FULL on tables that store rows, if this capture does that; return whether any was set.

        Only for a managed publication, or one that is to be created. Not inside a transaction, which would keep the
        locks.
        """
        if self._full is None or not leaves or self._connection.info.transaction_status != pq.TransactionStatus.IDLE:
            return False
        facts = self._facts()
        return (facts is None or (self._is_managed(facts) and not facts.is_standby)) and self._full.give(leaves)

    def awaits_identity(self, leaves: Collection[int]) -> bool:
        """Whether :meth:`give_identities` can set it on all of the tables, but not yet."""
        return self._full is not None and self._full.waiting.issuperset(leaves)

    def _without_identity(self, tables: Collection[int]) -> list[int]:
        """The tables and partitions without a replica identity, by OID; empty if they are to be left alone."""
        if self._full is None:
            return []
        return [
            leaf for each in leaves_without_identity(self._connection, self._name, tables).values() for leaf in each
        ]

    def retract(self, used: Collection[int]) -> None:
        """Remove tables from a managed publication that none of the ``used`` ones needs."""
        facts = self._facts()
        if facts is None or not self._is_managed(facts) or facts.is_standby or self._stream_pid is None:
            return
        unused = [oid for (oid,) in rows(self._connection, _UNUSED, {"used": list(used), "publication": facts.oid})]
        tables, self._lock_ms = self._tables(unused), _LOCK_MS
        self._left &= tables.keys()
        for oid in sorted(tables.keys()):
            name, is_own = tables[oid]
            if self._postponed(oid) is not None:
                continue
            if not (facts.is_own and is_own):
                self._log_left(oid, name)
            elif (reason := self._alter("DROP", oid, name)) is None:
                logger.info("table taken out of the publication table=%s", dotted(name))
            else:
                logger.warning("table stays in the publication table=%s reason=%s", dotted(name), reason)

    def _log_left(self, oid: int, name: TableName) -> None:
        if oid not in self._left:
            self._left.add(oid)
            statement = self._statement("DROP", name)
            logger.info("table of no shape is published table=%s statement=%s", dotted(name), statement)

    def _postponed(self, oid: int) -> str | None:
        """Why the last attempt to alter the publication for a table failed, until it is due for a retry."""
        at_s, reason = self._retry_at_s.get(oid, (0.0, ""))
        return reason if at_s > time.monotonic() else None

    def obstacles(self, oids: Mapping[int, Collection[str]]) -> dict[int, Unpublished]:
        """What prevents :meth:`publish` from adding tables, by OID; ``oids`` is as there."""
        return self._obstacles(oids, self._tables(oids))

    def _obstacles(
        self, oids: Mapping[int, Collection[str]], tables: Mapping[int, tuple[TableName, bool]]
    ) -> dict[int, Unpublished]:
        """What prevents capture from adding tables, by OID; one that is not among ``tables`` was dropped."""
        facts = self._facts()
        if facts is None:
            raise PostgresError(f"there is no publication {self._name}; --create creates it")
        lacking = without_identity(self._connection, self._name, {oid: oids[oid] for oid in tables})
        found = {oid: Unpublished("the table was dropped", None) for oid in set(oids) - tables.keys()}
        for oid, (name, is_own) in tables.items():
            reasons, statements = list[str](), list[str]()
            if oid in lacking:
                broken, remedy = lacking[oid]
                reasons.append(" or ".join([identity_reason(broken), *remedy.otherwise]))
                statements += remedy.statements
            if (reason := self._refusal(facts, name, is_own=is_own)) is not None:
                reasons.append(reason)
                statements.append(self._statement("ADD", name))
            if reasons:
                found[oid] = Unpublished("; ".join(reasons), "; ".join(statements) or None)
        return found

    def _refusal(self, facts: _Facts, name: TableName, *, is_own: bool) -> str | None:
        if not self._is_managed(facts):
            return f"publication {self._name} is not managed by capture"
        if facts.is_standby:
            return "the server is a standby, so the statement must be run on its primary"
        if not facts.is_own:
            return f"capture's role is not the owner of publication {self._name}"
        return None if is_own else f"capture's role is not the owner of table {dotted(name)}, or may not use its schema"

    def _alter(self, verb: Literal["ADD", "DROP"], oid: int, name: TableName) -> str | None:
        """Add or remove a table, in a separate transaction; return why that failed."""
        connection = self._connection
        rows(connection, "BEGIN")
        try:
            rows(connection, _SETTINGS.format(lock_ms=self._lock_ms))
            rows(connection, self._mark())
            if verb == "DROP" and rows(connection, _HOLDER, (self._slot,)) != [(self._stream_pid,)]:
                raise PostgresError("another process reads the slot")  # noqa: TRY301  rolled back below
            rows(connection, self._statement(verb, name))
            # The table is locked now. Before that, it may have been renamed, or have lost its identity.
            ((is_in,),) = rows(connection, _HAS_TABLE, (self._name, oid))
            if is_in != (verb == "ADD"):
                raise PostgresError("it was renamed meanwhile")  # noqa: TRY301  likewise
            if is_in and without_identity(connection, self._name, {oid: ()}):
                raise PostgresError("it has lost its replica identity")  # noqa: TRY301  likewise
            rows(connection, "COMMIT")
        except PostgresError as error:
            # Unless it is lost, the connection remains usable: a lock timeout does not mean a lost server.
            if connection.closed or connection.info.transaction_status == pq.TransactionStatus.UNKNOWN:
                raise
            rows(connection, "ROLLBACK")
            self._lock_ms = _NEXT_LOCK_MS
            self._retry_at_s = {each: last for each, last in self._retry_at_s.items() if last[0] > time.monotonic()}
            self._retry_at_s[oid] = time.monotonic() + _RETRY_S, str(error)
            return str(error)
        return None

    def _facts(self) -> _Facts | None:
        found = rows(self._connection, _FACTS, (self._name,))
        return _Facts(*found[0]) if found else None

    def _tables(self, oids: Collection[int]) -> Mapping[int, tuple[TableName, bool]]:
        """The names of tables, and whether this role may add each to a publication of its own."""
        found = readable_rows(self._connection, _TABLES, list(oids))
        return {oid: ((schema, name), is_own) for oid, schema, name, is_own in found}

    def _is_managed(self, facts: _Facts) -> bool:
        return facts.comment == _MANAGED + self._slot

    def _mark(self) -> str:
        text = (_MANAGED + self._slot).replace("'", "''")
        return f"COMMENT ON PUBLICATION {quoted(self._name)} IS '{text}'"

    def _statement(self, verb: Literal["ADD", "DROP"], table: TableName) -> str:
        return f"ALTER PUBLICATION {quoted(self._name)} {verb} TABLE {sql_table(table)}"


def create_statement(connection: Connection, name: str, tables: Collection[TableName] = ()) -> str:
    """The statement that creates the publication with ``tables``.

    It sends stored generated columns if the server can (PostgreSQL 18): otherwise shapes would lack them.
    """
    of_tables = f" FOR TABLE {', '.join(map(sql_table, sorted(tables)))}" if tables else ""
    sends = " WITH (publish_generated_columns = stored)" if connection.server_version >= PUBLISHES_SINCE else ""
    return f"CREATE PUBLICATION {quoted(name)}{of_tables}{sends}"
