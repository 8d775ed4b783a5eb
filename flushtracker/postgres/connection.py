"""Connections to PostgreSQL, and which failures to retry.

Options are libpq's own keywords (host, port, dbname, user, sslmode, passfile, …) and are passed through; libpq itself
reads PGPASSFILE and its other environment variables. Messages show only the values of host, port and dbname.

Every connection has the same session settings, whatever the database, the role, the options and the environment say.
They determine how the server writes values as text, even in the replication stream, and shapes compare and store those
texts. Names in statements refer to PostgreSQL's own functions, operators, types and tables, never to objects that
another role has created with the same names. Users' tables are always schema-qualified.
"""

import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.errors import CharacterNotInRepertoire, UntranslatableCharacter

from flushtracker.errors import PostgresError, PostgresUnavailableError, one_line
from flushtracker.postgres.connection_refusals import failure_text, refusal_remedy, service_name

_Result = TypeVar("_Result")
_POLL_S: Final = 0.1
_CANCEL_TIMEOUT_S: Final = 1.0


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """psycopg's connection, with a limit on how long a statement waits for the server's response.

    Parameters are interpolated on the client, so one call may have several statements, and the server infers no types
    for them.
    """

    answer_timeout_s: float | None = None
    """``None`` for no limit: creating a slot waits for every running transaction."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        super().__init__(pgconn)
        self.cursor_factory = psycopg.ClientCursor
        self.case_differences: dict[int, tuple[str, ...]] = {}
        """Known differences of collations (:mod:`~flushtracker.postgres.case_differences`), by OID."""

    @property
    def server_version(self) -> int:
        return self.info.server_version

    def wait(self, gen: PQGen[_Result], interval: float = _POLL_S, timeout: float | None = None) -> _Result:
        """Overrides how psycopg waits for the server, at every statement.

        The server process itself enforces ``statement_timeout``. A process that hangs, in a system call or because it
        was stopped, does not, while its kernel still responds over TCP. After an interrupt the caller ends at once, and
        must not wait for such a server either. The connection is closed in both cases.
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


SCHEMAS_SINCE: Final = 150_000
"""The first server version whose publications may have whole schemas."""
APPLICATION_NAME: Final = "flushtracker_capture"
_CONNECT_TIMEOUT_SECONDS: Final = 10
_SETTINGS_TIMEOUT_S: Final = 30.0
"""How long the first statement of a connection may take, before anything limits its statements."""
# A slow server has this much longer than statement_timeout to report that it has canceled a statement.
_ANSWER_MARGIN_S: Final = 5.0
# SQLSTATEs of connection exceptions, shutdowns, a full disk, no memory, too many connections, a slot that another
# connection still holds, and deadlocks and conflicts, for example a standby's with the primary's VACUUM.
_UNAVAILABLE_STATES: Final = ("08", "57P", "53100", "53200", "53300", "55006", "40")
# SQLSTATEs of statements canceled by statement_timeout, by an administrator, or by lock_timeout.
_CANCELED_STATES: Final = ("57014", "55P03")
# SQLSTATEs for a row that would be longer than a string may be: its values together, or the text of one value, whose
# message the server does not translate.
_LIMIT_STATE: Final = "54000"
_INTERNAL_STATE: Final = "XX000"
_TOO_LARGE: Final = "invalid memory alloc request size"

_DEFAULTS: Final = {
    "application_name": APPLICATION_NAME,
    "connect_timeout": str(_CONNECT_TIMEOUT_SECONDS),
    # A lost peer is noticed within half a minute. TCP sends keepalives only while nothing is unacknowledged; capture
    # sends a status update each second, so for the stream tcp_user_timeout matters, without which the kernel would
    # retransmit for about 15 minutes.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
# Without a password, OpenSSL would prompt for that of an encrypted key on the terminal, and wait.
_NO_PROMPT: Final = ("sslpassword", "none")
# A keyword rather than one of the settings below, because a service or PGCLIENTENCODING may set another.
_CLIENT_ENCODING: Final = {"client_encoding": "UTF8"}
# libpq refuses this before it connects, but after it has read the service file.
_DO_NOT_CONNECT: Final = {"gssencmode": "none"}
# The first statement of every connection. A role that may create objects in a schema of the path could otherwise run
# code as this role: even if pg_catalog comes first, a function whose arguments match better is preferred. The schema of
# temporary objects is searched first unless it is listed. Without other schemas, the texts of regclass and the like are
# qualified everywhere in the same way, as with the empty path of PostgreSQL's own subscriber.
_SEARCH_PATH: Final = "SET search_path = pg_catalog, pg_temp"
# The settings of PostgreSQL's own subscriber (libpqwalreceiver), and others that affect texts. They are set by
# statements and not by libpq's `options`, which PGDATESTYLE and PGTZ would override, and which remain the user's.
_SETTINGS: Final = {
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
    # Settings that change the meaning of a condition.
    "array_nulls": "on",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # A GIN index would return a random subset of the rows.
    "gin_fuzzy_search_limit": "0",
}
_SNAPSHOT_SETTINGS: Final = {
    **_SETTINGS,
    "application_name": "flushtracker_snapshot",
    # Raise an error rather than hide rows by a policy: the stream has them.
    "row_security": "off",
    # While others read, the transaction that exports a snapshot is idle.
    "idle_in_transaction_session_timeout": "0",
    "statement_timeout": "0",
    # Compiling hundreds of conditions for each range would take longer than evaluating them.
    "jit": "off",
}
# Limits that end a session or its transaction, and the first version that has them. The stream sends each transaction
# inside one of its own, so a limit set for the role or database would end the stream in the middle of a large
# transaction, every time.
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
    """Open an ordinary connection with the replication stream's text formats; raises as :func:`connect` does.

    Its transactions may take any time, and row-level policies cannot hide rows.
    """
    return _with_settings(_connect(options, Connection), _SNAPSHOT_SETTINGS)


def server_encoding(connection: Connection) -> str:
    return str(connection.info.parameter_status("server_encoding"))


def limit_statements(connection: Connection, *, statement_timeout_s: float, lock_timeout_s: float) -> None:
    """Let the server cancel statements that run longer, or wait longer for a lock.

    They then raise ``PostgresUnavailableError``, even if the server does not cancel them in time.
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


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """Let all queries in the body see one snapshot; nested, the outer one's."""
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
    """Wait until there is something to read, an error or the end; return whether there is.

    A process with many files has descriptors above 1,023, which ``select(2)`` does not support. Once libpq has closed
    the socket, perhaps in another thread, there is none: the next call reports why.
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
            # psycopg itself refuses a value, for example one with NUL.
            raise PostgresError(f"a statement cannot be sent: {error}") from error
        raise postgres_error(error.sqlstate, str(error)) from error


def is_untranslatable(error: PostgresError) -> bool:
    """Whether the server could not convert a text that it has to UTF-8."""
    return isinstance(error.__cause__, (CharacterNotInRepertoire, UntranslatableCharacter))


def postgres_error(sqlstate: str | None, text: str, *, is_copy: bool = False) -> PostgresError:
    """The error for a server's error message, or for a lost connection (no ``sqlstate``).

    Within a copy, which assigns no transaction ID, a limit of the server can only be that of a text.
    """
    if sqlstate in _CANCELED_STATES:
        return PostgresUnavailableError(
            f"PostgreSQL canceled a statement: {one_line(text)}; pg_stat_activity and pg_locks show what it waited for"
        )
    if sqlstate is None or sqlstate.startswith(_UNAVAILABLE_STATES):
        return PostgresUnavailableError(f"PostgreSQL is unavailable: {one_line(text)}")
    if is_copy and (sqlstate == _LIMIT_STATE or (sqlstate == _INTERNAL_STATE and _TOO_LARGE in text)):
        return PostgresError(
            f"PostgreSQL cannot send a change, as of a row that has 1 GB or more as text: {one_line(text)} "
            f"(SQLSTATE {sqlstate}). A slot does not get past it: see the runbook"
        )
    return PostgresError(f"PostgreSQL reports an error: {one_line(text)} (SQLSTATE {sqlstate})")


def server_name(options: Mapping[str, str]) -> str:
    """The server that the options name, for messages; among libpq's environment variables only PGSERVICE is used."""
    if "host" not in options and (service := service_name(options)) is not None:
        return f"service {service}"
    host, port = options.get("host", "the default host"), options.get("port", "5432")
    return f"{host} port {port}, database {options.get('dbname', '(default)')}"


def _connect(options: Mapping[str, str], kind: type[Connection]) -> Connection:
    keywords = {**_DEFAULTS, **options, **_CLIENT_ENCODING}
    if service_name(options) is None:
        # A service's own value would be overridden.
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

    psycopg itself resolves names and tries several servers, but does not read the service file.
    """
    asked = pq.PGconn.connect_start(make_conninfo(**keywords | _DO_NOT_CONNECT).encode())
    try:
        found = {option.keyword.decode(): option.val for option in asked.info}
        return {name: value.decode() for name in ("host", "hostaddr", "port") if (value := found.get(name))}
    finally:
        asked.finish()


def _with_settings(connection: Connection, settings: dict[str, str]) -> Connection:
    unlimited = {name: "0" for name, since in _UNLIMITED.items() if connection.server_version >= since}
    # A pooler without a free server, or a hung process, accepts the login and then sends nothing.
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
