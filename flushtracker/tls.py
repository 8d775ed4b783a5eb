"""Finds out why a client has not accepted a server's certificate.

librdkafka and libpq only report that the verification failed. So after such a failure, and only then, another
connection is opened with Python's TLS, whose error has the reason; nothing else is sent over it.
"""

import os
import socket
import ssl
from typing import Final

_TIMEOUT_S: Final = 5.0
_PEM: Final = "-----BEGIN CERTIFICATE"
_REMEDIES: Final = {
    "expired": "renew it",
    "not yet valid": "set the clocks",
    "mismatch": "connect by a name that it has",
    "revoked": "replace it",
}


def certificate_fault(
    host: str, port: int, *, ca: str | None, ca_option: str, crl: str | None = None, request: bytes = b""
) -> str:
    """Why the certificate of the server is not accepted, and what to do, for an error message.

    ``ca`` has the trusted authorities: a file, a directory or PEM text, from the option ``ca_option``; ``None`` for the
    system's. ``crl`` is a file of revoked certificates. ``request`` asks the server to start TLS; it replies with one
    byte.
    """
    check_ca = f"check that {ca_option} has the authority that signed it"
    try:
        reason = _reason(host, port, ca, crl, request)
    except OSError:
        reason = None
    if reason is None:
        return f"{check_ca}, that it has the name {host} and that it has not expired"
    return f"{reason}; {next((remedy for part, remedy in _REMEDIES.items() if part in reason), check_ca)}"


def _reason(host: str, port: int, ca: str | None, crl: str | None, request: bytes) -> str | None:
    """OpenSSL's reason, or ``None`` if the certificate is accepted here; raises ``OSError`` if it cannot be checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is None:
        context.load_default_certs()
    elif _PEM in ca:
        context.load_verify_locations(cadata=ca)
    elif os.path.isdir(ca):  # noqa: PTH112  as the option is written
        context.load_verify_locations(capath=ca)
    else:
        context.load_verify_locations(cafile=ca)
    if crl is not None:
        context.load_verify_locations(cafile=crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    with socket.create_connection((host, port), _TIMEOUT_S) as connection:
        if request:
            connection.sendall(request)
            connection.recv(1)
        try:
            context.wrap_socket(connection, server_hostname=host).close()
        except ssl.SSLCertVerificationError as error:
            return str(error.verify_message).rstrip(".")
    return None
