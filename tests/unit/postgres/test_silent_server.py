"""A server that accepts the login and then says nothing, as a pooler does that has no server for its client."""

import socket
import struct
from contextlib import suppress
from threading import Thread
from typing import Final

import pytest

from flushtracker.errors import PostgresUnavailableError
from flushtracker.postgres import connection

_REQUESTS: Final = (80877103, 80877104)  # for TLS and for GSSAPI


_LOGIN: Final = (
    b"R\0\0\0\x08\0\0\0\0S\0\0\0\x18server_version\x0017.4\0S\0\0\0\x19client_encoding\0UTF8\0"
    b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x01Z\0\0\0\x05I"
)
"""AuthenticationOk, two parameters, the key for cancels, and ReadyForQuery."""


def _accept_logins(listener: socket.socket) -> None:
    clients = []
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            clients.append(client)
            while True:
                (length,) = struct.unpack("!i", client.recv(4, socket.MSG_WAITALL))
                body = client.recv(length - 4, socket.MSG_WAITALL)
                if struct.unpack("!i", body[:4])[0] not in _REQUESTS:
                    break
                client.sendall(b"N")
            client.sendall(_LOGIN)


def test_a_server_that_never_answers_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture, and the thread that watches its slot, waited for it for ever; the next host was not tried again."""
    monkeypatch.setattr(connection, "_SETTINGS_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=_accept_logins, args=(listener,), daemon=True).start()
        options = {"host": "127.0.0.1", "port": str(listener.getsockname()[1]), "user": "u", "dbname": "d"}
        with pytest.raises(PostgresUnavailableError, match=r"has not answered a query for 0\.5 s"):
            connection.connect(options)
        listener.shutdown(socket.SHUT_RDWR)
