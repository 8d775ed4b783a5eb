"""Which failures to connect to PostgreSQL are for good, told from libpq's text."""

import psycopg
import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres.connection import postgres_error
from flushtracker.postgres.connection_refusals import failure_text, refusal_remedy

AT = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    "reason",
    [
        "Connection refused",
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is shutting down",
        "FATAL:  sorry, too many clients already",
        'FATAL:  number of requested standby connections exceeds "max_wal_senders" (currently 1)',
        "FATAL:  out of shared memory",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        "timeout expired",
        "SSL error: unexpected eof while reading",
    ],
)
def test_a_server_that_may_return_is_retried(reason: str) -> None:
    """The same holds for a connection that breaks while TLS begins."""
    assert refusal_remedy(AT + reason, {}) is None


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ('root certificate file "/x" does not exist', "correct sslrootcert"),
        ("server does not support SSL, but SSL was required", "switch it on in the server, or correct sslmode"),
        ('FATAL:  database "x" does not exist', "correct the connection, or the server"),
    ],
)
def test_a_refusal_is_for_good_and_has_a_remedy(reason: str, remedy: str) -> None:
    """Also one with a text that is not known here, as long as the server has sent it."""
    assert refusal_remedy(AT + reason, {}) == remedy


def test_a_server_that_refuses_does_not_make_the_restart_of_another_final() -> None:
    """One of two hosts has no entry for this client, and the other one is starting."""
    refused, starts = 'FATAL:  no pg_hba.conf entry for host "10.0.0.2"', "FATAL:  the database system is starting up"
    assert refusal_remedy(f"{AT}{refused}\n{AT}{starts}", {}) is None
    assert refusal_remedy(f"{AT}{starts}\n{AT}{refused}", {}) is None
    assert str(refusal_remedy(f"{AT}{refused}\n{AT}{refused}", {})).startswith("add one to the server's pg_hba.conf")


WRONG = 'FATAL:  password authentication failed for user "u"'
ORDER = "libpq takes postgres.password, else PGPASSWORD, else the passfile"


@pytest.mark.parametrize(
    ("options", "variable", "reason", "origin"),
    [
        ({"password": "x"}, "y", WRONG, "postgres.password"),
        ({}, "y", WRONG, "PGPASSWORD"),
        ({"passfile": "/etc/pass"}, "", f'{WRONG} password retrieved from file "/etc/pass"', "the passfile /etc/pass"),
    ],
)
def test_newcomer_with_a_wrong_password_is_told_where_it_came_from(
    options: dict[str, str], variable: str, reason: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGPASSWORD of a shell's profile is easily forgotten, and a passfile is easily not the one that one edits."""
    monkeypatch.setenv("PGPASSWORD", variable)
    monkeypatch.setenv("PGPASSFILE", "/home/u/pass")
    passfile = options.get("passfile", "/home/u/pass")
    assert refusal_remedy(AT + reason, options) == (
        f"correct user and password, which is from {origin} ({ORDER} {passfile}), or the role's VALID UNTIL"
    )


def test_newcomer_without_a_password_is_told_the_three_places_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default passfile is named with its folder, since the program may run as another user."""
    monkeypatch.delenv("PGPASSFILE", raising=False)
    monkeypatch.setenv("HOME", "/home/u")
    assert refusal_remedy(AT + "fe_sendauth: no password supplied", {}) == (f"set a password ({ORDER} /home/u/.pgpass)")


def test_a_certificate_that_cannot_be_checked_again_has_all_remedies() -> None:
    """Nothing listens at that address."""
    message = 'connection to server at "127.0.0.1", port 9 failed: SSL error: certificate verify failed'
    assert refusal_remedy(message, {"sslrootcert": "system"}) == (
        "check that sslrootcert has the authority that signed it, that it has the name 127.0.0.1 and that it has not "
        "expired"
    )


def test_the_message_names_each_host_that_was_tried() -> None:
    """psycopg gives libpq the addresses, so libpq names no other host; and it repeats the last failure."""
    first = 'connection failed: connection to server at "10.0.0.1", port 1 failed: refused'
    last = "connection is bad: no route"
    message = (
        f"{last}\nMultiple connection attempts failed. All failures were:\n"
        f"- host: 'db', port: '1', hostaddr: '10.0.0.1': {first}\n"
        f"- host: '10.0.0.2', port: '2', hostaddr: None: {last}"
    )
    named = 'connection to server at "db" (10.0.0.1), port 1 failed: refused\nno route'
    assert failure_text(psycopg.OperationalError(message)) == named
    assert failure_text(psycopg.OperationalError(first)) == first.removeprefix("connection failed: ")


@pytest.mark.parametrize("sqlstate", ["53100", "53200", "53300", "40001", "40P01"])
def test_what_the_server_lacks_for_a_while_is_retried(sqlstate: str) -> None:
    """A full disk, too little memory and a conflict end capture no more than too many connections do; others have a
    cause here.
    """
    assert isinstance(postgres_error(sqlstate, "could not extend file"), PostgresUnavailableError)
    assert not isinstance(postgres_error("42501", "permission denied"), PostgresUnavailableError)


@pytest.mark.parametrize(
    ("sqlstate", "text"),
    [
        ("54000", "out of memory\nDETAIL:  Cannot enlarge string buffer containing 600000028 bytes"),
        ("54000", "Speicher aufgebraucht"),
        ("XX000", 'invalid memory alloc request size 1080000003\nCONTEXT:  slot "s", associated LSN 0/1B64A18'),
    ],
)
def test_a_row_that_the_server_cannot_send_is_named_as_such(sqlstate: str, text: str) -> None:
    """It ends the stream at each start, so it is no failure to retry; the server says only that memory is lacking."""
    error = postgres_error(sqlstate, text, is_copy=True)
    assert not isinstance(error, PostgresUnavailableError)
    assert str(error).startswith(
        "PostgreSQL cannot send a change, as of a row that has 1 GB or more as text: "
        f"{' '.join(text.split())} (SQLSTATE {sqlstate}). "
    )
    other = postgres_error("XX000", "cache lookup failed", is_copy=True)
    assert str(other).startswith("PostgreSQL reports an error: cache lookup")


def test_another_limit_of_the_server_is_not_taken_for_a_large_row() -> None:
    """The remedy drops the slot; before a wraparound a statement fails with the same SQLSTATE."""
    text = "database is not accepting commands that assign new transaction IDs to avoid wraparound data loss"
    assert str(postgres_error("54000", text)) == f"PostgreSQL reports an error: {text} (SQLSTATE 54000)"
