"""``PublishFence``: stops a capture that was replaced by another.

On one server, the slot itself excludes a second capture. After a failover it does not: the old primary may still run,
with a capture that still reads it. So on each connection, a capture *claims* the source in its registry entry with a
token of the process. A later claim fences the earlier one.

A thread reads the registry every ``CHECK_S``. Capture queues a record only if its claim was last found to be the latest
less than ``LEASE_S`` ago; the publisher checks that before each record. Another thread, which nothing blocks, discards
queued records (``abandon``): at once when there is another claim, and ``retry_timeout`` after the end of a lease that
was not renewed, whatever was confirmed meanwhile. Either ends capture. The fence lasts as long as records may be
queued: at the end of a connection they are awaited or discarded (``source_opening``).

A claim replaces the entry that its capture has read, and the brokers may confirm it much later. Of two concurrent
claims, only the first one holds: each capture rereads the registry after its claim is confirmed, and ends if another
one came in between. But the later claim has reverted the changes of the first. So an unconfirmed claim is discarded
``CLAIM_S`` after the registry was first read (``claiming``), and a capture that changes more than the holder, or clears
the token of a seal, continues only ``CLAIM_WAIT_S`` after its own claim was confirmed: by then it sees any concurrent
claim.

A capture that takes a source over to another timeline also waits until the previous one must have ended (``wait_s``).
Only then does it check that the server continues what was published.

This relies on clocks, and on what a client can discard. A request in a broker's socket may still be executed late. And
a process that was suspended between the check and queuing, or with records in its queue, may send them when it resumes.
They do harm only if its server had sent it WAL that the promoted standby lacks: not if ``synchronized_standby_slots``
names that standby's slot, because the server then sends nothing that the standby has not confirmed.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Final, Protocol

from flushtracker.errors import BrokerError, BrokerUnavailableError, FencedError, FlushtrackerError
from flushtracker.events.registry_events import SourceEntry, is_source_entry, parse_registry_entry

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
LEASE_S: Final = 5.0
CLAIM_S: Final = 15.0
"""How long after the preceding read a claim may be unconfirmed; longer than the lease, at whose end capture ends."""
CLAIM_WAIT_S: Final = CLAIM_S + CHECK_S
"""How long after its own claim a capture may still find a concurrent one."""
_JOIN_S: Final = 1.0
_ENFORCE_S: Final = 0.2
"""The maximum delay of discarding; less than ``CHECK_S``, which ``wait_s`` includes for it."""


class EntryReader(Protocol):
    """The part of ``TopicReader`` that is used here."""

    def since(self, topic: str, starts: Mapping[int, int]) -> tuple[list[bytes], dict[int, int]]: ...

    def close(self) -> None: ...


def wait_s(retry_timeout_ms: int) -> float:
    """How long a fenced capture may still publish, in seconds."""
    return LEASE_S + CHECK_S + retry_timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class Claim:
    """A capture's claim of ``source`` as ``holder``, which replaces the entry ``before``, if any.

    ``starts`` are the Kafka offsets of the registry's topic before that entry was read, at ``read_s``, monotonic.
    ``retry_timeout_s`` is how long a record may stay queued after the lease.
    """

    source: str
    holder: str
    before: SourceEntry | None
    starts: Mapping[int, int]
    read_s: float
    retry_timeout_s: float


class PublishFence:
    """The fence of one connection; a context manager. ``topic`` is the registry's.

    ``abandon`` discards queued records and makes the publisher raise the given error.
    """

    def __init__(
        self,
        open_reader: Callable[[], EntryReader],
        topic: str,
        claim: Claim,
        stop: Event,
        abandon: Callable[[FlushtrackerError], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_reader = open_reader
        self._topic = topic
        self._claim = claim
        self._starts = dict(claim.starts)
        self._stop = stop
        self._abandon = abandon
        self._deadline_s = LEASE_S + claim.retry_timeout_s
        self._now_s = now_s
        self._claim_until_s = math.inf
        self._checked_s = claim.read_s
        self._is_fenced = False
        self._failure: Exception | None = None
        self._has_failed = False
        self._has_ended = Event()
        self._lock = Lock()
        self._abandoned: FlushtrackerError | None = None
        self._thread = Thread(target=self._run, name="publish-fence", daemon=True)
        self._enforcer = Thread(target=self._enforce, name="publish-deadline", daemon=True)

    def __enter__(self) -> "PublishFence":
        self._thread.start()
        self._enforcer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        # Brokers that do not answer must not delay the exit.
        self._thread.join(_JOIN_S)
        self._enforcer.join(_JOIN_S)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Unless the body ends before, the claim is discarded ``CLAIM_S`` after the last read; reads during the body do
        not count.

        They may come from a broker that is partitioned from the others and does not know another claim.
        """
        self._claim_until_s = self._checked_s + CLAIM_S
        yield
        self._claim_until_s = math.inf

    def is_open(self) -> bool:
        """Whether capture may publish now; if not, retry soon.

        Raises:
            FencedError: another capture has claimed the source.
            BrokerUnavailableError: it may not publish and is to stop, or may not for longer than ``retry_timeout``.
            BrokerError: the registry has a claim that cannot be read.
        """
        self.enforce()
        if self._abandoned is not None:
            raise type(self._abandoned)(str(self._abandoned))
        if self._failure is not None:
            raise BrokerError(
                f"source {self._claim.source}: whether another capture has claimed the source cannot be read, so "
                f"nothing more is published: {self._failure}"
            ) from self._failure
        is_open = self._now_s() - self._checked_s < LEASE_S
        if not is_open and self._stop.is_set():
            raise BrokerUnavailableError("the registry was not readable, so nothing more was published")
        return is_open

    def enforce(self) -> None:
        """Discard queued records if the source was claimed, or if that could not be excluded for too long."""
        with self._lock:
            if self._abandoned is None:
                self._abandoned = self._reason()
                if self._abandoned is not None:
                    self._abandon(self._abandoned)

    def _reason(self) -> FlushtrackerError | None:
        """Why queued records must be discarded now; ``None`` if they need not."""
        now_s = self._now_s()
        silent_s = now_s - self._checked_s
        if self._is_fenced:
            return FencedError(
                f"source {self._claim.source}: another capture has claimed the source, over another connection, as "
                "after a failover: this one publishes nothing more. If both servers live, stop the one that was "
                "replaced"
            )
        if now_s >= self._claim_until_s:
            return BrokerUnavailableError(
                f"source {self._claim.source}: the brokers have not confirmed its claim in {CLAIM_S:.0f} s, so it is "
                "discarded; start again"
            )
        if silent_s >= self._deadline_s:
            return BrokerUnavailableError(
                f"source {self._claim.source}: the registry was not readable for {silent_s:.0f} s, so another capture "
                "may have taken over: what was not confirmed is discarded; start again"
            )
        return None

    def check(self, reader: EntryReader) -> None:
        """Read the claims since the last check; raises ``BrokerError`` or ``DecodeError``."""
        started_s = self._now_s()
        values, starts = reader.since(self._topic, self._starts)
        # Also one from before this claim: it was not known when this capture read the source's positions.
        if any(entry.holder != self._claim.holder for entry in self._entries(values)):
            self._is_fenced = True
        elif not self._is_fenced:
            self._checked_s = max(self._checked_s, started_s)
        # Last, because a thread that reads from there on must know earlier findings.
        self._starts = starts

    def _entries(self, values: Iterable[bytes]) -> Iterable[SourceEntry]:
        """The entries of the source, except the one that was read before the claim."""
        for value in values:
            # Other entries may be of a newer release.
            entry = parse_registry_entry(value) if is_source_entry(value, self._claim.source) else None
            if isinstance(entry, SourceEntry) and entry != self._claim.before:
                yield entry

    def _enforce(self) -> None:
        while self._abandoned is None and not self._has_ended.wait(_ENFORCE_S):
            self.enforce()

    def _run(self) -> None:
        try:
            while not self._has_ended.is_set() and not self._is_fenced:
                self._try_to_watch()
                self._has_ended.wait(CHECK_S)
        except Exception as error:  # noqa: BLE001  the publishing thread must get any error
            self._failure = error

    def _try_to_watch(self) -> None:
        """Read the registry until the fence ends, or the brokers do not answer."""
        try:
            with closing(self._open_reader()) as reader:
                while not self._has_ended.is_set() and not self._is_fenced:
                    self.check(reader)
                    self._has_failed = False
                    self._has_ended.wait(CHECK_S)
        except BrokerError as error:
            if not self._has_failed:
                logger.warning("registry not readable, so nothing is published reason=%s", error)
            self._has_failed = True
