"""``Evictor``: asks the tracking job who holds the slot, and keeps what the policy decides until capture's thread acts.

Capture's thread alone changes shapes, so the evictor only decides, in a thread of its own that may wait for HTTP. What
it has decided counts for seconds: the next look may find the shape flushed.
"""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import Final, Protocol

from flushtracker.capture.eviction.config import EvictionRule
from flushtracker.capture.eviction.policy import Decision, EvictionPolicy
from flushtracker.capture.subscriptions import Subscriptions
from flushtracker.monitoring.peers import PeerAnswer
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.job_status import JobStatus

logger = logging.getLogger(__name__)

_LONGEST_TICK_S: Final = 5.0
_SHORTEST_TICK_S: Final = 0.1
_STOP_TIMEOUT_S: Final = 1.0


class StatusClient(Protocol):
    """Asks one program for its status: the part of :class:`flushtracker.monitoring.peers.StatusPeer` used here."""

    answer: PeerAnswer

    def ask(self) -> None: ...


class Evictor:
    """Looks at ``read`` and the job's document in a thread, as a context manager; :meth:`evict` acts, in capture's."""

    def __init__(self, rule: EvictionRule, peers: Sequence[StatusClient], read: Callable[[], CaptureStatus]) -> None:
        self._policy = EvictionPolicy(rule)
        self._peers = peers
        self._read = read
        self._tick_s = min(max(rule.grace_ms / 4000, _SHORTEST_TICK_S), _LONGEST_TICK_S)
        self._stop = Event()
        self._decision: tuple[float, Decision] | None = None
        self._unreachable: dict[str, str] = {}
        self._logged = ""
        self._thread = Thread(target=self._run, name="evictor", daemon=True)

    def __enter__(self) -> "Evictor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def evict(self, source: str, subscriptions: Subscriptions) -> None:
        """In capture's thread, between two fragments: remove the shape of ``source`` that is to go, if there is one."""
        made, self._decision = self._decision, None
        if made is None:
            return
        made_s, decision = made
        is_old = time.monotonic() - made_s > 2 * self._tick_s + _SHORTEST_TICK_S
        if decision.shape_id is not None and decision.source == source and not is_old:
            subscriptions.evict(decision.shape_id, decision.reason, int(time.time() * 1000))

    def _run(self) -> None:
        while not self._stop.wait(self._tick_s):
            self._look()

    def _look(self) -> None:
        for peer in self._peers:
            peer.ask()
            self._log_answer(peer.answer)
        capture = self._read()
        jobs = [
            answer.status
            for answer in (peer.answer for peer in self._peers)
            if answer.error is None and isinstance(answer.status, JobStatus)
        ]
        knowing = [job for job in jobs if any(source.source == capture.source for source in job.sources)]
        # Two jobs that know the source may disagree, and neither is to be trusted.
        job = knowing[0] if len(knowing) == 1 else None
        decision = self._policy.decide(capture.at_ms, capture, job)
        self._decision = (time.monotonic(), decision) if decision.shape_id is not None else None
        self._log_decision(decision)

    def _log_answer(self, answer: PeerAnswer) -> None:
        """Log once that a peer does not answer: without the job's document nothing is evicted."""
        if answer.error is not None and answer.url not in self._unreachable:
            logger.warning("no shape can be evicted without this status url=%s reason=%s", answer.url, answer.error)
            self._unreachable[answer.url] = answer.error
        elif answer.error is None and self._unreachable.pop(answer.url, None) is not None:
            logger.info("status answers again url=%s", answer.url)

    def _log_decision(self, decision: Decision) -> None:
        """Log why nothing is evicted, each reason once until it changes."""
        if decision.shape_id is None and decision.reason != self._logged:
            level = logging.WARNING if decision.is_postponed else logging.DEBUG
            logger.log(level, "no shape evicted reason=%s", decision.reason)
        self._logged = decision.reason
