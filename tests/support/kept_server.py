"""``KeptServer``: one server for many tests. Each test finds it as initdb leaves it.

A reset takes a tenth of the time that a copy of a server's files takes.
"""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from flushtracker.errors import FlushtrackerError
from flushtracker.local.postgres import LocalPostgres
from flushtracker.postgres.connection import Connection, rows
from tests.support.new_server import running_server

_MOST_WAL_FILES: Final = 12
"""Files of 16 MB each: tests copy a server's files."""
_FILES: Final = ("postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf")
# What databases share, and a test may have changed: the roles and settings that are not dropped with those it created.
_SHARED: Final = """
SELECT string_agg(a::text, ' ' ORDER BY a::text) FROM (
  SELECT r::text FROM pg_authid r UNION ALL SELECT m::text FROM pg_auth_members m
  UNION ALL SELECT s::text FROM pg_db_role_setting s UNION ALL SELECT p::text FROM pg_parameter_acl p
  UNION ALL SELECT datname || coalesce(datacl::text, '') FROM pg_database WHERE datname <> 'postgres'
  UNION ALL SELECT spcname FROM pg_tablespace UNION ALL SELECT o::text FROM pg_replication_origin o
  UNION ALL SELECT slot_name FROM pg_replication_slots
) AS shared (a)
"""


class KeptServer:
    """A server of PostgreSQL 15 or newer; one that cannot be reset is replaced. Close it when done.

    ``binaries`` are those of :class:`LocalPostgres`.
    """

    def __init__(self, binaries: Path | None = None) -> None:
        self._binaries = binaries
        self._stack = ExitStack()
        self._server: LocalPostgres | None = None
        self._as_new: list[object] = []

    def take(self) -> LocalPostgres:
        """A running, empty server."""
        if self._server is None:
            self._server = self._stack.enter_context(running_server(self._binaries))
            self._as_new = [*_own(self._server), _shared(self._server)]
        return self._server

    def give_back(self) -> None:
        """Drop all databases, slots and roles; stop a server that was restarted or configured, or is not empty then."""
        if self._server is not None and not self._is_as_new(self._server):
            self.close()

    def close(self) -> None:
        self._stack.close()
        self._server = None

    def _is_as_new(self, server: LocalPostgres) -> bool:
        try:
            wal_files = [*(server.data / "pg_wal").glob("0*")]
            if _own(server) != self._as_new[:-1] or len(wal_files) > _MOST_WAL_FILES:
                return False
            with closing(server.connect(dbname="template1")) as session:
                _empty(session)
            server.log.write_bytes(b"")
            return bool(_shared(server) == self._as_new[-1])
        except (FlushtrackerError, OSError):
            return False


def _own(server: LocalPostgres) -> list[object]:
    """Its port, settings, process and files."""
    pid = (server.data / "postmaster.pid").read_text().splitlines()[0]
    return [server.port, dict(server.settings), pid, *((server.data / name).read_bytes() for name in _FILES)]


def _shared(server: LocalPostgres) -> Any:
    with closing(server.connect()) as session:
        return rows(session, _SHARED)


def _empty(session: Connection) -> None:
    rows(session, "SET statement_timeout = '60 s'")
    rows(
        session,
        """
        SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
        WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid()
        """,
    )
    for (name,) in rows(session, "SELECT quote_ident(datname) FROM pg_database WHERE datname !~ '^template[01]$'"):
        rows(session, f"DROP DATABASE {name} WITH (FORCE)")
    rows(session, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    for (name,) in rows(session, "SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384"):
        rows(session, f"DROP ROLE {name}")
    rows(session, "SELECT pg_reload_conf()")
    rows(session, "CREATE DATABASE postgres TEMPLATE template0 STRATEGY wal_log")
