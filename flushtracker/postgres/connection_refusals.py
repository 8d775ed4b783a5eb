"""Recognizes connection failures that a retry cannot fix, by libpq's message, with a remedy for each.

libpq has no codes for them. So if it or the server translates its messages, a refusal may not be recognized; it then
counts as temporary, like any other failure.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psycopg

from flushtracker.tls import certificate_fault

_ALL_ATTEMPTS: Final = "Multiple connection attempts failed. All failures were:\n"
# Each attempt's message from psycopg begins like this. psycopg passes libpq the address of a host, so libpq's message
# has no name.
_ATTEMPT: Final = re.compile(
    r"^(?:- host: '?(?P<host>[^',]*)'?, port: .*?, hostaddr: \S+: )?(?:connection failed|connection is bad): "
    r'(?:connection to server at "(?P<address>[^"]+)")?',
    re.MULTILINE,
)
_NEXT_ATTEMPT: Final = re.compile(r"\n(?=connection to server at )")
# Parts of a refusal that a retry may overcome: the server is starting, stopping or recovering, or out of connections,
# walsenders, memory, files or disk, which any other client may cause.
_TRANSIENT: Final = (
    "starting up",
    "shutting down",
    "recovery",
    "too many",
    "connection slots",
    "not yet accepting",
    "max_wal_senders",
    "out of shared memory",
    "out of memory",
    "Too many open files",
    "No space left on device",
    "terminating connection",
)
_REMEDIES: Final = {
    "is not permitted to log in": "ALTER ROLE … LOGIN",
    "CONNECT privilege": "GRANT CONNECT ON DATABASE … TO this role",
    "REPLICATION attribute": "ALTER ROLE … REPLICATION",
    "replication role to start walsender": "ALTER ROLE … REPLICATION",
    "no pg_hba.conf entry": "add one to the server's pg_hba.conf, or correct user, dbname or sslmode",
    "does not match host name": "connect by a name that the certificate has",
    "root certificate file": "correct sslrootcert",
    "server does not support SSL": "switch it on in the server, or correct sslmode",
    "no protocols available": "correct ssl_min_protocol_version and ssl_max_protocol_version",
    "but not private key file": "correct sslkey",
    "has group or world access": "chmod 600 that file",
    "could not load private key file": "correct sslkey, or its password, sslpassword",
    "could not read certificate file": "correct sslcert",
    "alert certificate expired": "renew the client's certificate, sslcert",
    "alert certificate revoked": "replace the client's certificate, sslcert",
    "alert unknown ca": "check that the server's ssl_ca_file has the authority that signed sslcert",
    "requires a valid client certificate": "set sslcert and sslkey to files that exist",
    "certificate authentication failed": "use a certificate whose name is the user's, or a map in pg_ident.conf",
    "channel binding required": "the server must use scram-sha-256 over TLS for this user; or correct channel_binding",
    "authentication method requirement": "correct require_auth, or the server's pg_hba.conf",
    "definition of service": "correct service, or PGSERVICEFILE, which names the file",
    "service file": "correct it, or PGSERVICEFILE, which names it",
}
"""The remedy by a part of libpq's message."""

_WRONG_VALUE: Final = re.compile(r"invalid \w+ value: ")
_REFUSED: Final = "password authentication failed"
_MISSING: Final = "no password supplied"
_DEFAULT_PASSFILE: Final = Path("~/.pgpass")
_BAD_CERTIFICATE: Final = re.compile(
    r'server at "(?P<host>[^"]+)"(?: \([^)]*\))?, port (?P<port>\d+) failed: SSL error: certificate'
)
_SSL_REQUEST: Final = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
"""Asks the server to start TLS."""

_DEFAULT_ROOT: Final = Path("~/.postgresql/root.crt")
_DEFAULT_REVOKED: Final = Path("~/.postgresql/root.crl")


def failure_text(error: psycopg.OperationalError) -> str:
    """Why each attempt to connect failed, in libpq's words, with the names of hosts."""
    name = error.pgconn.host.decode() if error.pgconn is not None else ""

    def named(attempt: re.Match[str]) -> str:
        host, address = attempt["host"] or name, attempt["address"]
        if address is None:
            return ""
        is_named = host not in ("", address)
        return "connection to server at " + (f'"{host}" ({address})' if is_named else f'"{address}"')

    return _ATTEMPT.sub(named, str(error).rpartition(_ALL_ATTEMPTS)[2])


def refusal_remedy(message: str, options: Mapping[str, str]) -> str | None:
    """What to do if the connection was refused permanently, for an error message; ``None`` if a retry may help.

    With several servers, all must have refused it: another one may be starting.
    """
    remedies = [_remedy(each, options) for each in _NEXT_ATTEMPT.split(message)]
    return None if None in remedies else remedies[0]


def _remedy(message: str, options: Mapping[str, str]) -> str | None:
    if certificate := _BAD_CERTIFICATE.search(message):
        host, port = certificate["host"], int(certificate["port"])
        ca = options.get("sslrootcert") or os.environ.get("PGSSLROOTCERT") or str(_DEFAULT_ROOT.expanduser())
        trusted = None if ca == "system" else ca
        revoked = options.get("sslcrl") or os.environ.get("PGSSLCRL") or str(_DEFAULT_REVOKED.expanduser())
        # As in libpq, which ignores a missing file.
        crl = revoked if os.path.isfile(revoked) else None  # noqa: PTH113  as the option is written
        return certificate_fault(host, port, ca=trusted, ca_option="sslrootcert", crl=crl, request=_SSL_REQUEST)
    if _REFUSED in message:
        origin = _password_origin(message, options)
        return f"correct user and password, which is from {origin} ({_order(options)}), or the role's VALID UNTIL"
    if _MISSING in message:
        return f"set a password ({_order(options)})"
    for part, remedy in _REMEDIES.items():
        if part in message:
            return remedy
    if _WRONG_VALUE.search(message):
        return "correct it"
    is_refusal = "FATAL:" in message and not any(part in message for part in _TRANSIENT)
    return "correct the connection, or the server" if is_refusal else None


def _passfile(options: Mapping[str, str]) -> str:
    return options.get("passfile") or os.environ.get("PGPASSFILE") or str(_DEFAULT_PASSFILE.expanduser())


def service_name(options: Mapping[str, str]) -> str | None:
    """The entry of libpq's service file with further options, if any."""
    return options.get("service") or os.environ.get("PGSERVICE")


def _password_origin(message: str, options: Mapping[str, str]) -> str:
    if options.get("password"):
        return "postgres.password"
    # libpq names the origin only for a passfile.
    if "password retrieved from file" in message:
        return f"the passfile {_passfile(options)}"
    if (service := service_name(options)) is not None:
        return f"service {service} or PGPASSWORD"
    return "PGPASSWORD" if os.environ.get("PGPASSWORD") else "elsewhere"


def _order(options: Mapping[str, str]) -> str:
    passfile, service = _passfile(options), service_name(options)
    of_service = f"else that of service {service}, " if service is not None else ""
    order = f"libpq takes postgres.password, {of_service}else PGPASSWORD, else the passfile {passfile}"
    return f"{order}, which it ignores: chmod 600 it" if _is_open_to_others(passfile) else order


def _is_open_to_others(passfile: str) -> bool:
    try:
        return os.stat(passfile).st_mode & 0o077 != 0  # noqa: PTH116  as the option is written
    except OSError:
        return False
