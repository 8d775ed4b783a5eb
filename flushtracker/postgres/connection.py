"""Connections to PostgreSQL, and which of their failures to retry.

Options are libpq's own keywords (host, port, dbname, user, sslmode, passfile, …) and are passed through; libpq itself
reads PGPASSFILE and its other environment variables. Messages show the values of host, port and dbname only.

Every connection has the same session settings, whatever the database, the role, the options and the environment say:
the server writes values as text with them, also in the replication stream, and shapes compare and store those texts.
And names in statements mean PostgreSQL's own functions, operators, types and tables, never those that another role has
created under the same names. Tables of users are always named with their schema.
"""

import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import psycopg2
import psycopg2.extensions
from psycopg2.extras import LogicalReplicationConnection

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection_refusals import refusal_remedy, service_name
from flushtracker.postgres.socket_wait import wait_readable


class Connection(psycopg2.extensions.connection):
    """psycopg2's connection, with a limit for how long :func:`rows` waits for the server's answer."""

    answer_timeout_s: float | None = None
    """``None`` for no limit: creating a slot waits for every running transaction."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.case_differences: dict[int, tuple[str, ...]] = {}
        """What is known of collations (:mod:`~flushtracker.postgres.case_differences`), by OID."""


class ReplicationConnection(LogicalReplicationConnection, Connection):
    """A connection for logical replication; its few commands take milliseconds."""

    answer_timeout_s: float | None = 35.0

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        # The initialiser of psycopg2's replication connections does not call that of Connection.
        self.case_differences = {}


APPLICATION_NAME: Final = "flushtracker_capture"
_CONNECT_TIMEOUT_SECONDS: Final = 10
_REASON_LENGTH: Final = 400
# A server that is only slow has this much longer than statement_timeout to report that it has canceled a statement.
_ANSWER_MARGIN_S: Final = 5.0
# SQLSTATEs of connection exceptions, shutdowns, a full disk, no memory, too many connections, and a slot that another
# connection still holds.
_UNAVAILABLE_STATES: Final = ("08", "57P", "53100", "53200", "53300", "55006")
# SQLSTATEs of statements that were canceled, by statement_timeout or by an administrator, or by lock_timeout.
_CANCELED_STATES: Final = ("57014", "55P03")

_DEFAULTS: Final = {
    "application_name": APPLICATION_NAME,
    "connect_timeout": str(_CONNECT_TIMEOUT_SECONDS),
    # A lost peer is noticed within half a minute. TCP sends keepalives only while nothing is unacknowledged;
    # capture sends a status update each second, so for the stream it is tcp_user_timeout that counts, without which the
    # kernel would retransmit for about 15 minutes.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
# Without a password OpenSSL would ask for that of an encrypted key, on the terminal, and wait.
_NO_PROMPT: Final = ("sslpassword", "none")
# A keyword and not a setting below, because psycopg2 must know it as well.
_CLIENT_ENCODING: Final = {"client_encoding": "UTF8"}
# The server would end the stream at text that is not UTF-8, each time again. psycopg2 still writes and reads UTF-8.
_BYTES: Final = "SQL_ASCII"
_UNCHECKED: Final = {"client_encoding": _BYTES}
# The first statement of every connection. Whoever may create objects in a schema of the path could otherwise run code
# as this role: even where pg_catalog comes first, a function whose arguments fit better is preferred. The schema of
# temporary objects is searched first unless it is listed. Without other schemas, the texts of regclass and its like
# have the same schemas everywhere, as with the empty path of PostgreSQL's own subscriber.
_SEARCH_PATH: Final = "SET search_path = pg_catalog, pg_temp"
# Those of PostgreSQL's own subscriber (libpqwalreceiver), and what else changes the texts. They are set by statements
# and not by libpq's `options`, which PGDATESTYLE and PGTZ would override, and which remain the user's.
_SETTINGS: Final = {
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    # What changes the meaning of a condition.
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # An index of arrays would return a random part of the rows.
    "gin_fuzzy_search_limit": "0",
}
_SNAPSHOT_SETTINGS: Final = {
    **_SETTINGS,
    "application_name": "flushtracker_snapshot",
    # An error rather than rows that a policy leaves out: the stream has them.
    "row_security": "off",
    # While others read, the transaction that exports a snapshot is idle.
    "idle_in_transaction_session_timeout": "0",
    "statement_timeout": "0",
    # Compiling hundreds of conditions for each range would take longer than evaluating them.
    "jit": "off",
}
# What ends a session or its transaction, and the version of PostgreSQL that has it first. The stream sends each
# transaction inside one of its own: where a role or a database limits these, the server would end the stream in the
# middle of a large transaction, each time again.
_UNLIMITED: Final = {"idle_session_timeout": 140_000, "transaction_timeout": 170_000}


def connect(options: Mapping[str, str]) -> Connection:
    """Open an ordinary connection, with autocommit.

    Raises:
        PostgresUnavailableError: the server cannot be reached at the moment.
        PostgresError: the server refuses the connection, or an option is unknown.
    """
    connection = _connect(options, Connection)
    connection.autocommit = True
    return _with_settings(connection, _SETTINGS)


def connect_for_replication(options: Mapping[str, str]) -> Connection:
    """Open a connection for logical replication; raises as :func:`connect` does.

    The text of a SQL_ASCII database may not be UTF-8.
    """
    connection = _connect(options, ReplicationConnection)
    return _with_settings(connection, _SETTINGS | (_UNCHECKED if server_encoding(connection) == _BYTES else {}))


def connect_for_snapshot(options: Mapping[str, str]) -> Connection:
    """Open an ordinary connection whose texts are those of the replication stream; raises as :func:`connect` does.

    Its transactions may take any time, and no row-level policy leaves out rows of a table.
    """
    connection = _connect(options, Connection)
    connection.autocommit = True
    return _with_settings(connection, _SNAPSHOT_SETTINGS)


def server_encoding(connection: Connection) -> str:
    """The encoding of the database, by PostgreSQL's name for it."""
    return str(connection.info.parameter_status("server_encoding"))


def limit_statements(connection: Connection, *, statement_timeout_s: float, lock_timeout_s: float) -> None:
    """Let the server cancel statements that take longer, or that wait longer for a lock.

    They then raise ``PostgresUnavailableError``; as they do if the server does not even cancel them.
    """
    _set(
        connection,
        {"statement_timeout": f"{statement_timeout_s * 1000:.0f}ms", "lock_timeout": f"{lock_timeout_s * 1000:.0f}ms"},
    )
    connection.answer_timeout_s = statement_timeout_s + _ANSWER_MARGIN_S


def rows(
    connection: Connection, statement: str, parameters: Sequence[object] | Mapping[str, object] = ()
) -> list[tuple[Any, ...]]:
    """Run one statement and return all of its rows.

    Raises:
        PostgresUnavailableError: the connection is lost, or the server does not answer in time.
        PostgresError: the server rejects the statement.
    """
    with answer_deadline(connection), translated_errors(), connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """Let all queries of the body see the database as of one moment; nested, that of the outer body."""
    if connection.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE:
        yield
        return
    rows(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if not connection.closed:
            rows(connection, "ROLLBACK")


def require_open(connection: Connection) -> None:
    """Raise ``PostgresUnavailableError`` if an idle connection is closed; costs nothing otherwise."""
    with translated_errors():
        descriptor = connection.fileno()
    if wait_readable(descriptor, 0):
        rows(connection, "SELECT 1")


@contextmanager
def answer_deadline(connection: Connection) -> Iterator[None]:
    """Raise ``PostgresUnavailableError`` if the body blocks for longer than the connection's ``answer_timeout_s``.

    The server process itself enforces ``statement_timeout``. One that hangs, in a system call or because it was
    stopped, enforces nothing, while its kernel still answers TCP; a call of libpq blocks until the socket is shut down.
    """
    seconds = connection.answer_timeout_s
    if seconds is None or connection.closed:
        yield
        return
    has_passed = threading.Event()

    def shut_down() -> None:
        has_passed.set()
        # Meanwhile the server may have closed the connection by itself.
        with suppress(OSError):
            duplicate.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    # A duplicate, so that the file's number cannot meanwhile become another file's.
    with closing(socket.socket(fileno=os.dup(connection.fileno()))) as duplicate:
        timer.start()
        try:
            yield
        except PostgresUnavailableError as error:
            if not has_passed.is_set():
                raise
            raise PostgresUnavailableError(
                f"PostgreSQL has not answered a query for {seconds:g} s: its server process hangs"
            ) from error
        finally:
            timer.cancel()
            timer.join()


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate psycopg2's errors into ``PostgresUnavailableError`` or ``PostgresError``."""
    try:
        yield
    except psycopg2.Error as error:
        raise postgres_error(error.pgcode, str(error)) from error


def postgres_error(sqlstate: str | None, text: str) -> PostgresError:
    """The error for a server's error message, or for a lost connection (no ``sqlstate``)."""
    if sqlstate in _CANCELED_STATES:
        return PostgresUnavailableError(
            f"PostgreSQL canceled a statement: {one_line(text)}; pg_stat_activity and pg_locks show what it waited for"
        )
    if sqlstate is None or sqlstate.startswith(_UNAVAILABLE_STATES):
        return PostgresUnavailableError(f"PostgreSQL is unavailable: {one_line(text)}")
    return PostgresError(f"PostgreSQL reports an error: {one_line(text)} (SQLSTATE {sqlstate})")


def one_line(text: str) -> str:
    """An error message on one line, of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _REASON_LENGTH else line[:_REASON_LENGTH] + " …"


def parse_options(text: str) -> dict[str, str]:
    """The options in a connection string of libpq, or in a URI ``postgresql://…``; raises ``ConfigError``."""
    try:
        return {name: str(value) for name, value in psycopg2.extensions.parse_dsn(text).items()}
    except psycopg2.Error:
        # libpq's message quotes the text, which may have a password.
        raise ConfigError(
            "the connection is not one of libpq, such as 'host=db dbname=app' or postgresql://db/app"
        ) from None


def server_name(options: Mapping[str, str]) -> str:
    """The server that the options name, for messages; of libpq's environment variables only PGSERVICE is looked up."""
    if "host" not in options and (service := service_name(options)) is not None:
        return f"service {service}"
    host, port = options.get("host", "the default host"), options.get("port", "5432")
    return f"{host} port {port}, database {options.get('dbname', '(default)')}"


def _connect(options: Mapping[str, str], factory: type[Connection]) -> Connection:
    keywords: dict[str, Any] = {**_DEFAULTS, **options, **_CLIENT_ENCODING}
    if service_name(options) is None:
        # A service's own would be overridden.
        keywords.setdefault(*_NO_PROMPT)
    try:
        connection: Connection = psycopg2.connect(connection_factory=factory, **keywords)
    except psycopg2.OperationalError as error:
        server, reason = f"PostgreSQL at {server_name(options)}", one_line(str(error))
        if (remedy := refusal_remedy(str(error), options)) is not None:
            raise PostgresError(f"no connection to {server}: {reason.rstrip('.')}; {remedy}") from error
        raise PostgresUnavailableError(f"{server} cannot be reached: {reason}") from error
    except psycopg2.Error as error:
        raise PostgresError(f"the connection options are refused: {one_line(str(error))}") from error
    return connection


def _with_settings(connection: Connection, settings: dict[str, str]) -> Connection:
    unlimited = {name: "0" for name, since in _UNLIMITED.items() if connection.server_version >= since}
    try:
        rows(connection, _SEARCH_PATH)
        _set(connection, settings | unlimited)
    except PostgresError:
        connection.close()
        raise
    return connection


def _set(connection: Connection, settings: Mapping[str, str]) -> None:
    rows(connection, "; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
