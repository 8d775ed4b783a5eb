"""Which failures to connect to PostgreSQL no retry can fix, recognized by libpq's message, and what to do about each.

libpq gives no code for them. So where it or the server translates its messages, a refusal may not be recognized; it
then counts as temporary, as any other failure does.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flushtracker.tls import certificate_fault

# Parts of a refusal that a retry may overcome: the server is starting, stopping, recovering, or out of connections.
_TRANSIENT: Final = (
    "starting up",
    "shutting down",
    "recovery",
    "too many",
    "connection slots",
    "not yet accepting",
)
_REMEDIES: Final = {
    "is not permitted to log in": "ALTER ROLE … LOGIN",
    "CONNECT privilege": "GRANT CONNECT ON DATABASE … TO this role",
    "REPLICATION attribute": "ALTER ROLE … REPLICATION",
    "no pg_hba.conf entry": "add one to the server's pg_hba.conf, or correct user, dbname or sslmode",
    "does not match host name": "connect by a name that the certificate has",
    "root certificate file": "correct sslrootcert",
    "server does not support SSL": "switch it on in the server, or correct sslmode",
    "invalid sslmode value": "correct it",
}
"""Part of libpq's message → what to do."""

_REFUSED: Final = "password authentication failed"
_MISSING: Final = "no password supplied"
_DEFAULT_PASSFILE: Final = Path("~/.pgpass")
_BAD_CERTIFICATE: Final = re.compile(
    r'server at "(?P<host>[^"]+)"(?: \([^)]*\))?, port (?P<port>\d+) failed: SSL error: certificate'
)
_SSL_REQUEST: Final = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
"""Asks the server to begin TLS."""

_DEFAULT_ROOT: Final = Path("~/.postgresql/root.crt")


def refusal_remedy(message: str, options: Mapping[str, str]) -> str | None:
    """What to do if the connection was refused for good, for an error message; ``None`` if a retry may help."""
    if certificate := _BAD_CERTIFICATE.search(message):
        host, port = certificate["host"], int(certificate["port"])
        ca = options.get("sslrootcert") or os.environ.get("PGSSLROOTCERT") or str(_DEFAULT_ROOT.expanduser())
        trusted = None if ca == "system" else ca
        return certificate_fault(host, port, ca=trusted, ca_option="sslrootcert", request=_SSL_REQUEST)
    if _REFUSED in message:
        return f"correct user and password, which is from {_password_origin(message, options)} ({_order(options)})"
    if _MISSING in message:
        return f"set a password ({_order(options)})"
    for part, remedy in _REMEDIES.items():
        if part in message:
            return remedy
    is_refusal = "FATAL:" in message and not any(part in message for part in _TRANSIENT)
    return "correct the connection, or the server" if is_refusal else None


def _passfile(options: Mapping[str, str]) -> str:
    return options.get("passfile") or os.environ.get("PGPASSFILE") or str(_DEFAULT_PASSFILE.expanduser())


def _password_origin(message: str, options: Mapping[str, str]) -> str:
    """Where libpq found the password that the server refuses."""
    if options.get("password"):
        return "postgres.connection.password"
    if os.environ.get("PGPASSWORD"):
        return "PGPASSWORD"
    # libpq names the origin only for a passfile.
    return f"the passfile {_passfile(options)}" if "password retrieved from file" in message else "elsewhere"


def _order(options: Mapping[str, str]) -> str:
    return f"libpq takes postgres.connection.password, else PGPASSWORD, else the passfile {_passfile(options)}"
