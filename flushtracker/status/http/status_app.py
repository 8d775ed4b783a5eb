"""``StatusApp``: the paths of a program's status over HTTP: metrics, health, readiness, document and page.

Each response is derived from the document alone; the page also reads :class:`PageData`.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final, NamedTuple, TypeAlias

from flushtracker.errors import printable
from flushtracker.process.clock import now_ms
from flushtracker.status.http.http_server import Response, is_allowed_host
from flushtracker.status.http.metrics import metrics
from flushtracker.status.program_status import ProgramStatus

_HEADING: Final = re.compile(r"^#{2,} (.+)$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Each section of a Markdown page by the anchor of its heading; its subsections are sections of their own.

    >>> sections("# T\\n## First aid\\na\\n### `--x`: y\\nb\\n")
    {'first-aid': '## First aid\\na\\n', '--x-y': '### `--x`: y\\nb\\n'}
    """
    found = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in found[1:]), len(text)]
    return {
        re.sub(r"[^\w -]", "", heading[1].lower()).replace(" ", "-"): text[heading.start() : end]
        for heading, end in zip(found, ends, strict=True)
    }


RUNBOOK: Final[Mapping[str, str]] = sections(
    files("flushtracker.status.http").joinpath("runbook.md").read_text(encoding="utf-8")
)


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


_Headers: TypeAlias = Mapping[str, str]


class _Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"
    headers: tuple[tuple[str, str], ...] = ()


class StatusApp:
    """``read`` returns the document, ``page_data`` the page's other data; it is served on ``listen_host``."""

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
        self._paths: Final[Mapping[str, Callable[[_Headers], _Answer]]] = {
            "/": lambda _: _Answer(200, _HTML, PAGE, PAGE_POLICY),
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status.json": lambda _: _json(self._read().to_json()),
            "/page.json": self._page_json,
            **{f"{_RUNBOOK}{section}": partial(_section, section) for section in RUNBOOK},
        }

    def __call__(self, method: str, path: str, headers: _Headers) -> Response:
        answer = self._answer(method, path, headers)
        own = (
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Content-Security-Policy", answer.policy),
        )
        return Response(answer.status, (*own, *_HEADERS, *answer.headers), b"" if method == "HEAD" else answer.body)

    def _answer(self, method: str, path: str, headers: _Headers) -> _Answer:
        if not is_allowed_host(self._listen_host, headers.get("host")):
            return _text(421, "Ask by localhost, by an address, or by the host of status.listen")
        handler = self._paths.get(path)
        if handler is None:
            paths = [path for path in self._paths if not path.startswith(_RUNBOOK)]
            return _text(404, f"The paths are {', '.join(paths)} and {_RUNBOOK} with a section")
        if method not in _METHODS:
            allowed = ", ".join(_METHODS)
            return _text(405, f"The methods are {allowed}")._replace(headers=(("Allow", allowed),))
        try:
            return handler(headers)
        except Exception as error:  # noqa: BLE001  the program continues without its status
            return _text(503, f"The status cannot be read: {type(error).__name__}")

    def _metrics(self, headers: _Headers) -> _Answer:
        content_type, body = metrics(self._read(), self._now_ms(), headers.get("accept", ""))
        return _Answer(200, content_type, body)

    def _healthz(self, _: _Headers) -> _Answer:
        age_s = max(self._now_ms() - self._read().at_ms, 0) / 1_000
        return _text(200, f"Alive; its status is {age_s:.1f} s old")

    def _readyz(self, _: _Headers) -> _Answer:
        reason = self._read().not_ready_because
        if reason is None:
            return _text(200, "Ready")
        return _text(503, f"Not ready: {reason}")

    def _page_json(self, _: _Headers) -> _Answer:
        return _json({"version": 1, "now_ms": self._now_ms(), "status": self._read().to_json(), **self._page_data()})


def _section(name: str, _: _Headers) -> _Answer:
    return _Answer(200, _TEXT, RUNBOOK[name].encode())


def _text(status: int, text: str) -> _Answer:
    return _Answer(status, _TEXT, f"{printable(text)}\n".encode())


def _json(fields: Mapping[str, Any]) -> _Answer:
    # ASCII: half a surrogate pair in a name becomes an escape, not an error.
    return _Answer(200, _JSON, json.dumps(fields).encode())


def _policy(page: bytes) -> str:
    """A Content-Security-Policy that allows only the page's own script and style, by their hashes."""

    def hashed(tag: bytes) -> str:
        contents = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL)
        return " ".join(f"'sha256-{b64encode(sha256(content).digest()).decode()}'" for content in contents)

    return (
        f"default-src 'none'; script-src {hashed(b'script')}; style-src {hashed(b'style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


PAGE: Final = files("flushtracker.status.http").joinpath("page.html").read_bytes()
"""One file that loads nothing else."""
PAGE_POLICY: Final = _policy(PAGE)
