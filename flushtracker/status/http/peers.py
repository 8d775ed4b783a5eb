"""The status of another program: ``StatusPeer`` requests it again every two seconds, ``read_program_status`` once.

``fetch`` is the HTTP client; the server may return anything, slowly, or nothing.
"""

import time
import urllib.request
from dataclasses import dataclass, replace
from http.client import HTTPException
from threading import Event, Thread
from typing import Final
from urllib.error import HTTPError

from flushtracker.errors import DecodeError, StatusError
from flushtracker.process.clock import now_ms
from flushtracker.status.program_status import ProgramStatus, parse_status

_PERIOD_S: Final = 2.0
_TIMEOUT_S: Final = 2.0
_FRESH_MS: Final = 10_000
_MAX_BYTES: Final = 1_048_576
_CHUNK_BYTES: Final = 65_536
_SHOWN_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The last ``status`` of a peer, and its time; ``error`` is why the last request failed."""

    url: str
    status: ProgramStatus | None = None
    at_ms: int | None = None
    error: str | None = None

    def fresh(self, at_ms: int) -> ProgramStatus | None:
        """The status, or ``None`` if it is older than ten seconds."""
        return self.status if self.at_ms is not None and at_ms - self.at_ms < _FRESH_MS else None


class StatusPeer:
    """The program at the base URL ``url``, from :meth:`start` to :meth:`close`.

    ``answer`` is replaced as a whole, so any thread may read it. With an unresponsive, slow or wrong peer it only ages.
    """

    def __init__(self, url: str) -> None:
        self.answer = PeerAnswer(url)
        self._asked_at_ms: int | None = None
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="status-peer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop polling. A request in progress ends by itself, at the latest with its timeout."""
        self._stopping.set()

    def poll(self) -> None:
        """Request the status once, and keep it."""
        last, self._asked_at_ms = self.answer, now_ms()
        try:
            status = parse_status(fetch(f"{last.url}/status.json", _TIMEOUT_S))
        except (OSError, HTTPException, DecodeError, ValueError) as error:
            self.answer = PeerAnswer(last.url, last.status, last.at_ms, fetch_failure(error))
        else:
            self.answer = PeerAnswer(last.url, status, now_ms())
        self._asked_at_ms = None

    def answer_at(self, at_ms: int) -> PeerAnswer:
        """The last answer, with an error if the current request has taken longer than ten seconds."""
        asked_at_ms = self._asked_at_ms
        if asked_at_ms is None or at_ms - asked_at_ms < _FRESH_MS:
            return self.answer
        return replace(self.answer, error=f"its answer takes longer than {_FRESH_MS // 1_000} s")

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(_PERIOD_S)


def read_program_status(url: str, timeout_s: float) -> ProgramStatus:
    """The status of the program at ``url``.

    Each step over the network may take ``timeout_s``; many small ones may take longer.

    Raises:
        StatusError: there is no response, or it is not a status of this version.
    """
    try:
        return parse_status(fetch(f"{url}/status.json", timeout_s))
    except HTTPError as error:
        raise StatusError(f"{url} answers, but with HTTP status {error.code}") from error
    except (OSError, HTTPException, UnicodeError) as error:
        reason = " ".join(fetch_failure(error).split())[:_SHOWN_LENGTH]
        raise StatusError(f"{url} does not answer ({reason[:1].lower()}{reason[1:]})") from error
    except (DecodeError, ValueError) as error:
        raise StatusError(f"{url} answers, but {error}") from error


def fetch(url: str, timeout_s: float) -> bytes:
    """The body of the response. Each step may take ``timeout_s``, and so may the body as a whole.

    A header that arrives byte by byte is not limited; a caller that must not wait for it must use a thread.

    HTTP and HTTPS only. It ignores the environment's proxies and follows no redirects.

    Raises:
        OSError: no response in time, or the response is an HTTP error.
        HTTPException: the server does not speak HTTP.
        ValueError: the body is too large.
    """
    deadline = time.monotonic() + timeout_s
    body = b""
    with _OPENER.open(url, timeout=timeout_s) as response:
        while chunk := response.read1(_CHUNK_BYTES):
            body += chunk
            if len(body) > _MAX_BYTES:
                raise ValueError(f"its answer is larger than {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"its answer took longer than {timeout_s:g} s")
    return body


def fetch_failure(error: Exception) -> str:
    """Why :func:`fetch` failed, in a few words."""
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason) or type(reason).__name__


def _opener() -> urllib.request.OpenerDirector:
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener


_OPENER: Final = _opener()
