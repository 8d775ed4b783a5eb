"""Which failures to connect to PostgreSQL are for good, told from libpq's text."""

import pytest

from flushtracker.postgres.connection_refusals import refusal_remedy

AT = 'connection to server at "db" (10.0.0.1), port 5432 failed: '


@pytest.mark.parametrize(
    "reason",
    [
        "Connection refused",
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is shutting down",
        "FATAL:  sorry, too many clients already",
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
        ('FATAL:  password authentication failed for user "u"', "correct user and password"),
        ("fe_sendauth: no password supplied", "set password, PGPASSWORD or a passfile"),
        ('root certificate file "/x" does not exist', "correct sslrootcert"),
        ("server does not support SSL, but SSL was required", "switch it on in the server, or correct sslmode"),
        ('FATAL:  database "x" does not exist', "correct the connection, or the server"),
    ],
)
def test_a_refusal_is_for_good_and_has_a_remedy(reason: str, remedy: str) -> None:
    """Also one with a text that is not known here, as long as the server has sent it."""
    assert refusal_remedy(AT + reason, {}) == remedy


def test_a_certificate_that_cannot_be_checked_again_has_all_remedies() -> None:
    """Nothing listens at that address."""
    message = 'connection to server at "127.0.0.1", port 9 failed: SSL error: certificate verify failed'
    assert refusal_remedy(message, {"sslrootcert": "system"}) == (
        "check that sslrootcert has the authority that signed it, that it has the name 127.0.0.1 and that it has not "
        "expired"
    )
