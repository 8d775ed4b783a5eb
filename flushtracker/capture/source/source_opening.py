"""``SourceOpening``: determines the source of each connection, checks that the server continues it, and claims it.

In this order, once the slot is held:

1. the source's state in the topics is read (``prior_state``);
2. the server's timeline is compared with the source's (``continuity``);
3. the source is claimed, which fences other captures (``publish_fence``);
4. on a later timeline, it waits for concurrent claims, and for another capture that may still publish, and 1 and 2 are
   repeated. So a server that lacks published WAL fences nobody, and nothing is published between the check and the next
   steps. Meanwhile the claim has the new timeline, and a server that is not on it is refused. A capture that is
   stopped, or fails the second check, retracts that. The same applies to a capture that clears the token of a seal, but
   it waits for claims only.

The source's entry gets the new timeline only after that, with its shapes (``CapturedSource.begin``), and before the
first fragment. A process that dies in between leaves the source claimed but otherwise unchanged.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from threading import Event
from types import TracebackType
from typing import Final, NamedTuple

from flushtracker.capture.source import publish_fence
from flushtracker.capture.source.captured_source import CapturedSource
from flushtracker.capture.source.continuity import SlotPositions
from flushtracker.capture.source.prior_state import PriorState, Succession, read_prior_state
from flushtracker.capture.source.publish_fence import Claim, PublishFence
from flushtracker.capture.wire.outbox import Publisher
from flushtracker.capture.wire.source_acks import SourceAcks
from flushtracker.errors import BrokerError, PostgresUnavailableError, SlotError
from flushtracker.events.topic_rules import deleted_beginning
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.postgres.upgrade_seal import UpgradeSeal
from flushtracker.wal.source_name import SourceName
from flushtracker.wal.timeline_history import TimelineHistory

logger = logging.getLogger(__name__)

_WAIT_SLICE_S: Final = 0.2
_REPLACE: Final = "set another kafka.topic_prefix, and start with --create --new-epoch: all shapes begin again"


class OpenedSource(NamedTuple):
    """The source of a connection, its acks, and its last ack."""

    source: CapturedSource
    acks: SourceAcks
    last_ack: int | None


class SourceOpening:
    """One per process; if ``succession`` says so, it begins a new epoch, once.

    ``source_of`` creates a captured source from its state in the topics.
    """

    def __init__(
        self,
        kafka: KafkaConfig,
        publisher: Publisher,
        source_of: Callable[[PriorState], CapturedSource],
        stop: Event,
        open_reader: Callable[[], TopicReader],
        succession: Succession,
    ) -> None:
        self._kafka = kafka
        self._publisher = publisher
        self._source_of = source_of
        self._stop = stop
        self._open_reader = open_reader
        self._succession = succession
        self._claims_until_s = 0.0
        """Until then, a concurrent claim may follow the last one."""
        self._others_until_s = 0.0
        """Until then, a fenced capture may still publish."""
        self.holder = uuid.uuid4().hex
        self.source: CapturedSource | None = None

    @property
    def begins_epoch(self) -> bool:
        """Whether the source that is opened next begins a new epoch."""
        return self._succession.new_epoch

    def open(
        self,
        base: SourceName,
        history: TimelineHistory,
        positions: SlotPositions,
        acks_of: Callable[[str], SourceAcks],
        connections: ExitStack,
    ) -> OpenedSource | None:
        """Open the source over a connection that holds the slot; ``None`` if capture is to stop.

        ``base`` is the server's name for a source that begins now, without a new epoch. ``history`` is that of its
        timeline. The fence lasts as long as ``connections``.

        Raises:
            SlotError: the server does not continue the source, or the registry's topic has lost its beginning.
            FencedError: another capture has claimed the source.
            BrokerError: a topic cannot be read.
        """
        # The gate still belongs to the previous connection. Nothing of that one is queued, and only the claim is
        # published here.
        self._publisher.gate = None
        read_s = time.monotonic()
        starts, prior = self._read(base, positions.seal)
        source = self._resumed(prior, positions.confirmed_lsn)
        acks = acks_of(source.name)
        last_ack = acks.last_ack()
        try:
            is_later = source.check_server(history, positions, last_ack)
        except SlotError as error:
            if not prior.is_upgrade or self._succession.upgraded_from is None:
                raise
            logger.warning("upgrade not proven, so all shapes begin again source=%s reason=%s", source.name, error)
            return self.open(base, history, positions._replace(seal=None), acks_of, connections)
        fence = self._fence(source.name, prior, starts, read_s)
        must_wait = is_later or source.is_sealed
        self._claim(source, fence, positions.wal_end, connections)
        if must_wait and not self._wait(fence, source.name, has_others=is_later):
            source.retract(has_waited=time.monotonic() >= self._others_until_s)
            return None
        if must_wait:
            _, prior = self._read(base, positions.seal)
            source = self._resumed(prior, positions.confirmed_lsn)
            if source.holder != self.holder:
                raise PostgresUnavailableError(f"another capture has claimed source {source.name}")
            last_ack = acks.last_ack()
            try:
                source.check_server(history, positions, last_ack)
            except SlotError:
                source.retract(has_waited=time.monotonic() >= self._others_until_s)
                raise
        return OpenedSource(source, acks, last_ack)

    def _fence(self, source: str, prior: PriorState, starts: Mapping[int, int], read_s: float) -> PublishFence:
        claim = Claim(source, self.holder, prior.entries.source, starts, read_s, self._kafka.retry_timeout_ms / 1000)
        return PublishFence(self._open_reader, self._kafka.topics.shapes, claim, self._stop, self._publisher.abandon)

    def _claim(self, source: CapturedSource, fence: PublishFence, wal_end: int, connections: ExitStack) -> None:
        """Claim the source; raises ``FencedError`` if another capture has claimed it since the registry was read."""
        has_others = source.may_be_published_by_another(self.holder)
        with closing(self._open_reader()) as reader:
            # Reading the topics may take long. A claim based on state from before another claim would undo that one.
            fence.check(reader)
            fence.is_open()
            connections.enter_context(fence)
            # Before the fence ends.
            connections.push(self._settle)
            self._publisher.gate = fence.is_open
            with fence.claiming():
                source.claim(self.holder, wal_end)
            claimed_s = time.monotonic()
            # Another claim may have been made concurrently, before this one.
            fence.check(reader)
        fence.is_open()
        # It fences others only once confirmed, which may take long.
        self._claims_until_s = claimed_s + publish_fence.CLAIM_WAIT_S
        if has_others:
            self._others_until_s = claimed_s + publish_fence.wait_s(self._kafka.retry_timeout_ms)

    def _settle(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Leave nothing queued at the end of a connection: later nothing checks whether it may still be sent."""
        if self.source is not None and (error is None or isinstance(error, PostgresUnavailableError)):
            self.source.outbox.wait_until_confirmed()
        else:
            self._publisher.abandon(BrokerError("capture has ended, and what was not confirmed is discarded"))

    def _wait(self, fence: PublishFence, source: str, *, has_others: bool) -> bool:
        """Wait until no concurrent claim can follow; return false if capture is to stop.

        With ``has_others``, also until a fenced capture can no longer publish.
        """
        until_s = max(self._claims_until_s, self._others_until_s if has_others else 0.0)
        logger.warning(
            "waiting until no other capture publishes source=%s seconds=%.0f", source, until_s - time.monotonic()
        )
        while time.monotonic() < until_s and not self._stop.is_set():
            fence.is_open()
            self._stop.wait(_WAIT_SLICE_S)
        return not self._stop.is_set()

    def _read(self, base: SourceName, seal: UpgradeSeal | None) -> tuple[dict[int, int], PriorState]:
        """The Kafka offsets up to which the registry was read, and the source's state in the topics."""
        known, topics = self.source, self._kafka.topics
        is_known = known is not None and (known.server_id, known.source.slot) == (base.system_id, base.slot)
        with closing(self._open_reader()) as reader:
            starts = reader.ends(topics.shapes)
            least = known.source if known is not None and is_known else None
            succession = replace(self._succession, sealed_from=None if seal is None else seal.system_id)
            prior = read_prior_state(reader, topics, base, succession, least=least)
            # Afterwards: anything deleted from now on was read.
            if deleted := deleted_beginning(reader.begins(topics.shapes)):
                raise SlotError(f"topic {topics.shapes} {deleted}, maybe also what shapes there are: {_REPLACE}")
        # The server that this one was upgraded from is kept until the source is registered.
        self._succession = replace(self._succession, new_epoch=False)
        return starts, prior

    def _resumed(self, prior: PriorState, confirmed_lsn: int) -> CapturedSource:
        """This process's state of the source, with what the topics have of it now."""
        if self.source is not None and self.source.source == prior.source:
            self.source.resume(prior, confirmed_lsn)
            return self.source
        self.source = self._source_of(prior)
        return self.source
