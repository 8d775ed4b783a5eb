"""``StatusApp``: the paths of a program's status as a WSGI application: metrics, health, readiness, document and page.

Each response is derived from the document alone; the page also reads :class:`PageData`.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flushtracker.errors import printable
from flushtracker.monitoring.http_server import is_meant_for
from flushtracker.monitoring.metrics import metrics
from flushtracker.monitoring.runbook import RUNBOOK
from flushtracker.process.clock import now_ms
from flushtracker.status.program_status import ProgramStatus

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_HTML: Final = "text/html; charset=utf-8"
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)
_RUNBOOK: Final = "/runbook/"
_METHODS: Final = ("GET", "HEAD")


class _Answer(NamedTuple):
    status: str
    content_type: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"
    headers: tuple[tuple[str, str], ...] = ()


class StatusApp:
    """``read`` returns the document, ``page_data`` what the page shows besides it; it is served on ``listen_host``."""

    def __init__(
        self,
        listen_host: str,
        read: Callable[[], ProgramStatus],
        page_data: Callable[[], Mapping[str, Any]],
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._listen_host = listen_host
        self._read = read
        self._page_data = page_data
        self._now_ms = now_ms
        self._paths: Final[Mapping[str, Callable[[WSGIEnvironment], _Answer]]] = {
            "/": lambda _: _Answer("200 OK", _HTML, PAGE, PAGE_POLICY),
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status.json": lambda _: _json(self._read().to_json()),
            "/page.json": self._page_json,
            **{f"{_RUNBOOK}{section}": partial(_section, section) for section in RUNBOOK},
        }

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        answer = self._answer(environ)
        length = ("Content-Length", str(len(answer.body)))
        policy = ("Content-Security-Policy", answer.policy)
        start_response(
            answer.status, [("Content-Type", answer.content_type), length, policy, *_HEADERS, *answer.headers]
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _answer(self, environ: "WSGIEnvironment") -> _Answer:
        if not is_meant_for(self._listen_host, environ.get("HTTP_HOST")):
            return _text("421 Misdirected Request", "Ask by localhost, by an address, or by the host of status.listen")
        handler = self._paths.get(environ["PATH_INFO"])
        if handler is None:
            paths = [path for path in self._paths if not path.startswith(_RUNBOOK)]
            return _text("404 Not Found", f"The paths are {', '.join(paths)} and {_RUNBOOK} with a section")
        if environ["REQUEST_METHOD"] not in _METHODS:
            allowed = ", ".join(_METHODS)
            return _text("405 Method Not Allowed", f"The methods are {allowed}")._replace(headers=(("Allow", allowed),))
        try:
            return handler(environ)
        except Exception as error:  # noqa: BLE001  the program continues without its status
            return _text("503 Service Unavailable", f"The status cannot be read: {type(error).__name__}")

    def _metrics(self, environ: "WSGIEnvironment") -> _Answer:
        content_type, body = metrics(self._read(), self._now_ms(), environ.get("HTTP_ACCEPT", ""))
        return _Answer("200 OK", content_type, body)

    def _healthz(self, _environ: "WSGIEnvironment") -> _Answer:
        age_s = max(self._now_ms() - self._read().at_ms, 0) / 1_000
        return _text("200 OK", f"Alive; its status is {age_s:.1f} s old")

    def _readyz(self, _environ: "WSGIEnvironment") -> _Answer:
        reason = self._read().not_ready_because
        if reason is None:
            return _text("200 OK", "Ready")
        return _text("503 Service Unavailable", f"Not ready: {reason}")

    def _page_json(self, _environ: "WSGIEnvironment") -> _Answer:
        return _json({"version": 1, "now_ms": self._now_ms(), "status": self._read().to_json(), **self._page_data()})


def _section(name: str, _environ: "WSGIEnvironment") -> _Answer:
    return _Answer("200 OK", _TEXT, RUNBOOK[name].encode())


def _text(status: str, text: str) -> _Answer:
    return _Answer(status, _TEXT, f"{printable(text)}\n".encode())


def _json(fields: Mapping[str, Any]) -> _Answer:
    # ASCII: half a surrogate pair in a name becomes an escape, not an error.
    return _Answer("200 OK", _JSON, json.dumps(fields).encode())


def _policy(page: bytes) -> str:
    """A Content-Security-Policy that allows only the page's own script and style, by their hashes."""

    def hashed(tag: bytes) -> str:
        contents = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        return " ".join(f"'sha256-{b64encode(sha256(content).digest()).decode()}'" for content in contents)

    return (
        f"default-src 'none'; script-src {hashed(b'script')}; style-src {hashed(b'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


PAGE: Final = files("flushtracker.monitoring").joinpath("page.html").read_bytes()
"""One file that loads nothing else."""
PAGE_POLICY: Final = _policy(PAGE)
