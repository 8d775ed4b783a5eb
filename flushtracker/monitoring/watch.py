"""``Watch``: what the page shows besides the program's own document: its peers' documents and the last hour.

Threads of its own ask the peers, and take a point of the history every ten seconds.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final

from flushtracker.monitoring.history import PERIOD_S, History
from flushtracker.monitoring.peer import Peer, PeerAnswer
from flushtracker.monitoring.program_status import ProgramStatus

_STOP_S: Final = 1.0


class Watch:
    """From :meth:`start` to :meth:`close`; ``read`` returns the program's own document."""

    def __init__(self, read: Callable[[], ProgramStatus], peers: Sequence[str]) -> None:
        self._read = read
        self._peers = [Peer(url) for url in peers]
        self._history = History()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="status-history", daemon=True)

    def start(self) -> None:
        """Begin to ask the peers and to take points."""
        for peer in self._peers:
            peer.start()
        self._thread.start()

    def close(self) -> None:
        """Stop without waiting for a peer."""
        self._stopping.set()
        for peer in self._peers:
            peer.close()
        self._thread.join(_STOP_S)

    def take_point(self) -> None:
        """Add a point of now to the history; of the program itself there is none if its document cannot be read."""
        at_ms = now_ms()
        statuses = [status for peer in self._peers if (status := peer.answer.fresh(at_ms)) is not None]
        with suppress(Exception):  # /healthz says so, and the next point may be there again.
            statuses.append(self._read())
        self._history.add(at_ms, statuses)

    def to_json(self) -> dict[str, Any]:
        """The peers and the history, as the page reads them."""
        at_ms = now_ms()
        return {
            "peers": [_peer_json(peer.answer_at(at_ms)) for peer in self._peers],
            "period_ms": PERIOD_S * 1_000,
            "history": self._history.to_json(),
        }

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.take_point()
            self._stopping.wait(PERIOD_S)


def now_ms() -> int:
    """The time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _peer_json(answer: PeerAnswer) -> dict[str, Any]:
    return {
        "url": answer.url,
        "at_ms": answer.at_ms,
        "error": answer.error,
        "status": None if answer.status is None else answer.status.to_json(),
    }
