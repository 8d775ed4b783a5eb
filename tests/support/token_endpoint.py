"""A token endpoint over HTTPS: signs a JWT for a client's id and secret, has the keys for a broker, and can fail."""

import base64
import json
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final
from urllib.parse import unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.support.certificates import HOST

AUDIENCE: Final = "kafka"
ISSUER: Final = "https://issuer.example"
_KEY_ID: Final = "key-1"
_HANG_S: Final = 300.0


class TokenEndpoint:
    """Serves ``/token`` and ``/keys``, with the key and the certificate in ``key_file``; a context manager.

    ``failure`` is the HTTP status that every request for a token gets, or ``hang`` for no answer at all. Tokens are
    valid for ``lifetime_s``, and are from ``skew_s`` in the future.
    """

    def __init__(self, key_file: Path) -> None:
        self.secrets: dict[str, str] = {}
        """The secret of each client, by its id."""
        self.lifetime_s, self.skew_s = 3600, 0
        self.failure: int | str | None = None
        self._issued: list[str] = []
        self._tokens: list[str] = []
        self._lock, self._released = Lock(), Event()
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = _Server(self)
        self.port: int = self._server.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(key_file)
        self._server.context = context

    def __enter__(self) -> "TokenEndpoint":
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def token_url(self) -> str:
        return f"https://{HOST}:{self.port}/token"

    @property
    def keys_url(self) -> str:
        return f"https://{HOST}:{self.port}/keys"

    @property
    def issued(self) -> list[str]:
        """The client of each token that was issued."""
        with self._lock:
            return [*self._issued]

    @property
    def tokens(self) -> list[str]:
        """Every token that was issued."""
        with self._lock:
            return [*self._tokens]

    def heal(self, lifetime_s: int = 3600) -> None:
        """Answer again as at the beginning, with tokens that are valid for so long."""
        self.lifetime_s, self.skew_s, self.failure = lifetime_s, 0, None
        self._released.set()
        self._released = Event()

    def answer(self, authorization: str) -> tuple[int, dict[str, Any]]:
        """The answer to a request for a token, with this header."""
        if self.failure == "hang":
            self._released.wait(_HANG_S)
        if isinstance(self.failure, int):
            return self.failure, {"error": "temporarily_unavailable"}
        client, _, secret = base64.b64decode(authorization.partition(" ")[2]).decode().partition(":")
        client, secret = unquote(client), unquote(secret)
        if self.secrets.get(client) != secret or not secret:
            # As servers may do, with what they were sent.
            return 401, {"error": "invalid_client", "error_description": f"{client} has no secret {secret}"}
        token = self.signed(client)
        with self._lock:
            self._issued.append(client)
            self._tokens.append(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}

    def signed(self, client: str, **claims: object) -> str:
        """A token of the client, with these claims in place of its usual ones."""
        now = int(time.time()) + self.skew_s
        body = {"sub": client, "aud": AUDIENCE, "iss": ISSUER, "iat": now, "exp": now + self.lifetime_s, **claims}
        head = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        text = ".".join(_base64(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_base64(self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def keys(self) -> dict[str, Any]:
        """The key that a broker validates the tokens with, as a JSON Web Key Set."""
        numbers = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": _KEY_ID, "alg": "RS256", "use": "sig"}
        return {"keys": [key | {"n": _number(numbers.n), "e": _number(numbers.e)}]}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    context: ssl.SSLContext

    def __init__(self, endpoint: TokenEndpoint) -> None:
        self.endpoint = endpoint
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the request's own thread, so that a client that sends nothing does not hold up the others.
        request.settimeout(_HANG_S)
        try:
            with self.context.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)
        except OSError:
            return  # A client that refuses the certificate, or that has waited long enough.


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._send(200, self.server.endpoint.keys())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._send(*self.server.endpoint.answer(self.headers.get("Authorization", "")))

    def _send(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The tests' output is no access log."""


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(number: int) -> str:
    return _base64(number.to_bytes((number.bit_length() + 7) // 8, "big"))
