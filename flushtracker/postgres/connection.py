"""Connections to PostgreSQL, and what their failures mean: try again, or give up.

Options are libpq's own keywords (host, port, dbname, user, sslmode, passfile, …) and pass through; libpq reads
PGPASSFILE and the other variables of the environment by itself. No message shows an option's value but host, port and
dbname.
"""

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import psycopg2
import psycopg2.extensions
from psycopg2.extras import LogicalReplicationConnection

from flushtracker.errors import PostgresError, PostgresUnavailableError

Connection: TypeAlias = psycopg2.extensions.connection
"""psycopg2's connection."""

APPLICATION_NAME: Final = "flushtracker_capture"
_CONNECT_TIMEOUT_SECONDS: Final = 10
_REASON_LENGTH: Final = 400
# What a server says that will take us later: it starts, stops, recovers, or has no free connection.
_LATER: Final = ("starting up", "shutting down", "recovery", "too many", "connection slots", "not yet accepting")
# Connection exceptions, shutdowns, too many connections, and a slot that another connection still holds.
_AWAY_STATES: Final = ("08", "57P", "53300", "55006")

_DEFAULTS: Final = {
    "application_name": APPLICATION_NAME,
    "connect_timeout": str(_CONNECT_TIMEOUT_SECONDS),
    # A peer that vanished without a word is noticed within half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
}


def connect(options: Mapping[str, str]) -> Connection:
    """An ordinary connection, each statement its own transaction.

    Raises:
        PostgresUnavailableError: the server cannot be reached at the moment.
        PostgresError: it refuses, or an option is not known.
    """
    connection = _connected(options, Connection)
    connection.autocommit = True
    return connection


def connect_for_replication(options: Mapping[str, str]) -> Connection:
    """A connection that understands the commands of logical replication; raises as :func:`connect` does."""
    return _connected(options, LogicalReplicationConnection)


def rows(connection: Connection, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """All rows of one statement.

    Raises:
        PostgresUnavailableError: the connection is lost.
        PostgresError: the server refuses the statement.
    """
    with refusals(), connection.cursor() as cursor:
        cursor.execute(statement, tuple(parameters) or None)
        return cursor.fetchall() if cursor.description else []


def require_open(connection: Connection) -> None:
    """Raise ``PostgresUnavailableError`` where the server has ended an idle connection; costs nothing otherwise."""
    if select.select([connection.fileno()], [], [], 0)[0]:
        rows(connection, "SELECT 1")


@contextmanager
def refusals() -> Iterator[None]:
    """Turn what psycopg2 raises inside into a ``PostgresUnavailableError`` or a ``PostgresError``."""
    try:
        yield
    except psycopg2.Error as error:
        raise refusal(error.pgcode, str(error)) from error


def refusal(sqlstate: str | None, text: str) -> PostgresError:
    """The error that a server's answer, or the loss of the connection (no ``sqlstate``), stands for."""
    if sqlstate is None or sqlstate.startswith(_AWAY_STATES):
        return PostgresUnavailableError(f"PostgreSQL is away: {reason(text)}")
    return PostgresError(f"PostgreSQL refuses: {reason(text)} (SQLSTATE {sqlstate})")


def reason(text: str) -> str:
    """What PostgreSQL says, on one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _REASON_LENGTH else line[:_REASON_LENGTH] + " …"


def server_name(options: Mapping[str, str]) -> str:
    """Where the options lead to, for messages; what libpq takes from its environment is not looked up."""
    host, port = options.get("host", "its default host"), options.get("port", "5432")
    return f"{host} port {port}, database {options.get('dbname', 'by default')}"


def _connected(options: Mapping[str, str], factory: type[Connection]) -> Connection:
    keywords: dict[str, Any] = {**_DEFAULTS, **options}
    try:
        return psycopg2.connect(connection_factory=factory, **keywords)
    except psycopg2.OperationalError as error:
        text = str(error)
        fact = f"PostgreSQL at {server_name(options)} cannot be reached: {reason(text)}"
        final = "FATAL:" in text and not any(word in text for word in _LATER)
        raise (PostgresError(fact) if final else PostgresUnavailableError(fact)) from error
    except psycopg2.Error as error:
        raise PostgresError(f"the options of the connection are refused: {reason(str(error))}") from error
