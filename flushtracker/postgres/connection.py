"""Connections to PostgreSQL, and which of their failures to retry.

Options are libpq's own keywords (host, port, dbname, user, sslmode, passfile, …) and are passed through; libpq itself
reads PGPASSFILE and its other environment variables. Messages show the values of host, port and dbname only.

Every connection has the same session settings, whatever the database, the role, the options and the environment say:
the server writes values as text with them, also in the replication stream, and shapes compare and store those texts.
And names in statements mean PostgreSQL's own functions, operators, types and tables, never those that another role has
created under the same names. Tables of users are always named with their schema.
"""

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from flushtracker.errors import ConfigError, PostgresError, PostgresUnavailableError
from flushtracker.postgres.connection_refusals import failure_text, refusal_remedy, service_name

_Result = TypeVar("_Result")
_POLL_S: Final = 0.1
_CANCEL_TIMEOUT_S: Final = 1.0


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """psycopg's connection, with a limit for how long a statement waits for the server's answer.

    Parameters become part of the statement here: so one call may have several statements, and the server infers no
    types for them.
    """

    answer_timeout_s: float | None = None
    """``None`` for no limit: creating a slot waits for every running transaction."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        super().__init__(pgconn)
        self.cursor_factory = psycopg.ClientCursor
        self.case_differences: dict[int, tuple[str, ...]] = {}
        """What is known of collations (:mod:`~flushtracker.postgres.case_differences`), by OID."""

    @property
    def server_version(self) -> int:
        """Such as 170004 for PostgreSQL 17.4."""
        return self.info.server_version

    def wait(self, gen: PQGen[_Result], interval: float = _POLL_S, timeout: float | None = None) -> _Result:
        """Overrides what psycopg waits for the server with, at every statement.

        The server process itself enforces ``statement_timeout``. One that hangs, in a system call or because it was
        stopped, enforces nothing, while its kernel still answers TCP. After an interrupt the caller ends at once, and
        may not wait for such a server either. The connection is closed in both cases.
        """
        limit_s = self.answer_timeout_s if timeout is None else timeout
        try:
            return psycopg.waiting.wait(gen, self.pgconn.socket, interval=interval, timeout=limit_s)
        except psycopg.errors._WaitTimeout as error:
            self.close()
            raise PostgresUnavailableError(
                f"PostgreSQL has not answered a query for {limit_s:g} s: its server process hangs"
            ) from error
        except (KeyboardInterrupt, SystemExit):
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
            self.close()
            raise


class ReplicationConnection(Connection):
    """A connection for logical replication; its few commands take milliseconds."""

    answer_timeout_s: float | None = 35.0


APPLICATION_NAME: Final = "flushtracker_capture"
_CONNECT_TIMEOUT_SECONDS: Final = 10
_REASON_LENGTH: Final = 400
_SETTINGS_TIMEOUT_S: Final = 30.0
"""How long the first statement of a connection may take, before anything limits its statements."""
# A server that is only slow has this much longer than statement_timeout to report that it has canceled a statement.
_ANSWER_MARGIN_S: Final = 5.0
# SQLSTATEs of connection exceptions, shutdowns, a full disk, no memory, too many connections, a slot that another
# connection still holds, and deadlocks and conflicts, as on a standby with what its primary's VACUUM has removed.
_UNAVAILABLE_STATES: Final = ("08", "57P", "53100", "53200", "53300", "55006", "40")
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
# A keyword and not a setting below, because a service or PGCLIENTENCODING may have another.
_CLIENT_ENCODING: Final = {"client_encoding": "UTF8"}
# libpq refuses it before it connects, but after it has read the service file.
_DO_NOT_CONNECT: Final = {"gssencmode": "none"}
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
    return _with_settings(_connect(options, Connection), _SETTINGS)


def connect_for_replication(options: Mapping[str, str]) -> Connection:
    """Open a connection for logical replication; raises as :func:`connect` does."""
    return _with_settings(_connect({**options, "replication": "database"}, ReplicationConnection), _SETTINGS)


def connect_for_snapshot(options: Mapping[str, str]) -> Connection:
    """Open an ordinary connection whose texts are those of the replication stream; raises as :func:`connect` does.

    Its transactions may take any time, and no row-level policy leaves out rows of a table.
    """
    return _with_settings(_connect(options, Connection), _SNAPSHOT_SETTINGS)


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
    """Run a statement, or several, and return all rows of the last one.

    Raises:
        PostgresUnavailableError: the connection is lost, or the server does not answer in time.
        PostgresError: the server rejects the statement.
    """
    with translated_errors(), connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def quote_ident(name: str) -> str:
    """A name as an identifier of SQL, always in quotes."""
    return sql.Identifier(name).as_string()


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """Let all queries of the body see the database as of one moment; nested, that of the outer body."""
    if connection.info.transaction_status != pq.TransactionStatus.IDLE:
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
    if wait_readable(connection, 0):
        rows(connection, "SELECT 1")


def wait_readable(connection: Connection, seconds: float) -> bool:
    """Wait until there is something to read, an error or the end; returns whether there is.

    A process with many files has descriptors above 1,023, which ``select(2)`` does not take. There is none once libpq
    has closed the socket, maybe in another thread: the next call says why.
    """
    try:
        descriptor = connection.fileno()
    except psycopg.OperationalError:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(ceil(seconds * 1000)))


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate psycopg's errors into ``PostgresUnavailableError`` or ``PostgresError``."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None and isinstance(error, psycopg.DataError):
            # psycopg itself refuses a value, as one with NUL.
            raise PostgresError(f"a statement cannot be sent: {error}") from error
        raise postgres_error(error.sqlstate, str(error)) from error


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
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except psycopg.Error:
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


def _connect(options: Mapping[str, str], kind: type[Connection]) -> Connection:
    keywords = {**_DEFAULTS, **options, **_CLIENT_ENCODING}
    if service_name(options) is None:
        # A service's own would be overridden.
        keywords.setdefault(*_NO_PROMPT)
    try:
        if service_name(options) is not None:
            keywords |= _servers_of_service(keywords)
        return kind.connect(make_conninfo(**keywords), autocommit=True)
    except psycopg.OperationalError as error:
        text = failure_text(error)
        server, reason = f"PostgreSQL at {server_name(options)}", one_line(text)
        if (remedy := refusal_remedy(text, options)) is not None:
            raise PostgresError(f"no connection to {server}: {reason.rstrip('.')}; {remedy}") from error
        raise PostgresUnavailableError(f"{server} cannot be reached: {reason}") from error
    except psycopg.Error as error:
        raise PostgresError(f"the connection options are refused: {one_line(str(error))}") from error


def _servers_of_service(keywords: dict[str, str]) -> dict[str, str]:
    """The servers that libpq finds for options with a service, as options.

    psycopg resolves names and tries several servers by itself, but does not read the service file.
    """
    asked = pq.PGconn.connect_start(make_conninfo(**keywords | _DO_NOT_CONNECT).encode())
    try:
        found = {option.keyword.decode(): option.val for option in asked.info}
        return {name: value.decode() for name in ("host", "hostaddr", "port") if (value := found.get(name))}
    finally:
        asked.finish()


def _with_settings(connection: Connection, settings: dict[str, str]) -> Connection:
    unlimited = {name: "0" for name, since in _UNLIMITED.items() if connection.server_version >= since}
    # A pooler without a free server, or a process that hangs, accepts the login and then says nothing.
    limit_s, connection.answer_timeout_s = connection.answer_timeout_s, _SETTINGS_TIMEOUT_S
    try:
        rows(connection, _SEARCH_PATH)
        _set(connection, settings | unlimited)
    except PostgresError:
        connection.close()
        raise
    connection.answer_timeout_s = limit_s
    return connection


def _set(connection: Connection, settings: Mapping[str, str]) -> None:
    rows(connection, "; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
