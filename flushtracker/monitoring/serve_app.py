"""``ServeStatusApp``: the status of the HTTP server of shapes as a WSGI application: metrics, health and readiness."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from flushtracker.errors import printable
from flushtracker.monitoring.http_server import is_meant_for
from flushtracker.monitoring.serve_metrics import serve_metrics
from flushtracker.status.serve_status import ServeStatus

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_TEXT: Final = "text/plain; charset=utf-8"
_METHODS: Final = ("GET", "HEAD")
_PATHS: Final = ("/metrics", "/healthz", "/readyz")
_Answer = tuple[str, str, bytes]


class ServeStatusApp:
    """``read`` returns the status; it is served on ``listen_host``."""

    def __init__(self, listen_host: str, read: Callable[[], ServeStatus]) -> None:
        self._listen_host = listen_host
        self._read = read

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            status, content_type, body = self._answer(environ)
        except Exception as error:  # noqa: BLE001  the program continues without its status
            status, content_type, body = _text("503 Service Unavailable", f"No status: {type(error).__name__}")
        headers = [("Content-Type", content_type), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
        start_response(status, [*headers, ("X-Content-Type-Options", "nosniff")])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: "WSGIEnvironment") -> _Answer:
        if not is_meant_for(self._listen_host, environ.get("HTTP_HOST")):
            return _text("421 Misdirected Request", "Ask by localhost, by an address, or by the host of status.listen")
        if environ["PATH_INFO"] not in _PATHS:
            return _text("404 Not Found", f"The paths are {', '.join(_PATHS)}")
        if environ["REQUEST_METHOD"] not in _METHODS:
            return _text("405 Method Not Allowed", f"The methods are {', '.join(_METHODS)}")
        return self._found(environ["PATH_INFO"], environ.get("HTTP_ACCEPT", ""))

    def _found(self, path: str, accept: str) -> _Answer:
        status = self._read()
        if path == "/metrics":
            content_type, body = serve_metrics(status, accept)
            return "200 OK", content_type, body
        if path == "/healthz":
            return _text("200 OK", "Alive")
        if status.not_ready_because is None:
            return _text("200 OK", "Ready")
        return _text("503 Service Unavailable", f"Not ready: {status.not_ready_because}")


def _text(status: str, text: str) -> _Answer:
    return status, _TEXT, f"{printable(text)}\n".encode()
