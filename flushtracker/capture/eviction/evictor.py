"""``Evictor``: gets from the tracking job which shape holds the slot, and applies the policy.

Only capture's thread changes shapes. So the evictor decides in its own thread, which may wait for HTTP, and capture's
thread acts on the decision. A decision expires after seconds, because the shape may have flushed since.
"""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Final, Protocol

from flushtracker.capture.eviction.config import EvictionRule
from flushtracker.capture.eviction.policy import Decision, EvictionPolicy
from flushtracker.capture.shapes.subscriptions import Subscriptions
from flushtracker.process.clock import now_ms
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http.peers import PeerAnswer
from flushtracker.status.job_status import JobStatus

logger = logging.getLogger(__name__)

_LONGEST_TICK_S: Final = 5.0
_SHORTEST_TICK_S: Final = 0.1
_STOP_TIMEOUT_S: Final = 1.0


class StatusClient(Protocol):
    """Gets one program's status: the part of :class:`flushtracker.status.http.peers.StatusPeer` used here."""

    answer: PeerAnswer

    def poll(self) -> None: ...


class Evictor:
    """A context manager: its thread reads capture's document and the job's. Capture's thread calls :meth:`evict`."""

    def __init__(self, rule: EvictionRule, peers: Sequence[StatusClient], read: Callable[[], CaptureStatus]) -> None:
        self._policy = EvictionPolicy(rule)
        self._peers = peers
        self._read = read
        self._tick_s = min(max(rule.grace_ms / 4000, _SHORTEST_TICK_S), _LONGEST_TICK_S)
        self._stop = Event()
        self._decision: tuple[float, Decision] | None = None
        self._unreachable: dict[str, str] = {}
        self._logged = ""
        self.evicted = 0
        """The number of shapes evicted; may be read from any thread."""
        self._thread = Thread(target=self._run, name="evictor", daemon=True)

    def __enter__(self) -> "Evictor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def evict(self, source: str, subscriptions: Subscriptions) -> None:
        """Evict the shape of ``source`` that was decided on, if any. Called by capture's thread, between two
        fragments.
        """
        made, self._decision = self._decision, None
        if made is None:
            return
        made_s, decision = made
        is_old = time.monotonic() - made_s > 2 * self._tick_s + _SHORTEST_TICK_S
        if decision.shape_id is not None and decision.source == source and not is_old:
            self.evicted += subscriptions.evict(decision.shape_id, decision.reason, now_ms())

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s):
            self._check()

    def _check(self) -> None:
        for peer in self._peers:
            peer.poll()
        capture = self._read()
        jobs = [
            answer.status
            for answer in (peer.answer for peer in self._peers)
            if answer.error is None and isinstance(answer.status, JobStatus)
        ]
        for peer in self._peers:
            # A peer that does not answer may be the job, unless another one is.
            if not jobs or peer.answer.error is None:
                self._log_answer(peer.answer)
        knowing = [job for job in jobs if any(source.source == capture.source for source in job.sources)]
        # If two jobs know the source, they may disagree, and neither can be trusted.
        job = knowing[0] if len(knowing) == 1 else None
        decision = self._policy.decide(capture.at_ms, capture, job)
        self._decision = (time.monotonic(), decision) if decision.shape_id is not None else None
        self._log_decision(decision)

    def _log_answer(self, answer: PeerAnswer) -> None:
        """Log once that a peer does not answer; without the job's document nothing is evicted."""
        if answer.error is not None and answer.url not in self._unreachable:
            logger.warning("no shape can be evicted without this status url=%s reason=%s", answer.url, answer.error)
            self._unreachable[answer.url] = answer.error
        elif answer.error is None and self._unreachable.pop(answer.url, None) is not None:
            logger.info("status answers again url=%s", answer.url)

    def _log_decision(self, decision: Decision) -> None:
        """Log why nothing is evicted, once per reason."""
        if decision.shape_id is None and decision.reason != self._logged:
            level = logging.WARNING if decision.is_postponed else logging.DEBUG
            logger.log(level, "no shape evicted reason=%s", decision.reason)
        self._logged = decision.reason
