"""``Peer``: the last status of another program, which a thread of its own asks for again and again."""

import time
from dataclasses import dataclass, replace
from http.client import HTTPException
from threading import Event, Thread
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.monitoring.http_client import fetch, fetch_failure
from flushtracker.monitoring.program_status import ProgramStatus, parse_status

_PERIOD_S: Final = 2.0
_TIMEOUT_S: Final = 2.0
_FRESH_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The last ``status`` that a peer gave, and when; ``error`` says why it gave none the last time it was asked."""

    url: str
    status: ProgramStatus | None = None
    at_ms: int | None = None
    error: str | None = None

    def fresh(self, now_ms: int) -> ProgramStatus | None:
        """The status if it is of now."""
        return self.status if self.at_ms is not None and now_ms - self.at_ms < _FRESH_MS else None


class Peer:
    """Another program's status at the base URL ``url``, from :meth:`start` to :meth:`close`.

    ``answer`` is replaced as a whole, so any thread may read it. A peer that is silent, slow or wrong only lets it age.
    """

    def __init__(self, url: str) -> None:
        self.answer = PeerAnswer(url)
        self._asked_at_ms: int | None = None
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="status-peer", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """Ask no more. A request that is under way ends by itself, at the latest with its timeout."""
        self._stopping.set()

    def ask(self) -> None:
        """Ask once, and keep the answer."""
        last, self._asked_at_ms = self.answer, time.time_ns() // 1_000_000
        try:
            status = parse_status(fetch(f"{last.url}/status.json", _TIMEOUT_S))
        except (OSError, HTTPException, DecodeError, ValueError) as error:
            self.answer = PeerAnswer(last.url, last.status, last.at_ms, fetch_failure(error))
        else:
            self.answer = PeerAnswer(last.url, status, time.time_ns() // 1_000_000)
        self._asked_at_ms = None

    def answer_at(self, now_ms: int) -> PeerAnswer:
        """The last answer; with an error also while the peer has not finished the next one for long."""
        asked_at_ms = self._asked_at_ms
        if asked_at_ms is None or now_ms - asked_at_ms < _FRESH_MS:
            return self.answer
        return replace(self.answer, error=f"its answer takes longer than {_FRESH_MS // 1_000} s")

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.ask()
            self._stopping.wait(_PERIOD_S)
