"""``CaptureLoop``: captures one slot, across reconnects, until it is stopped.

One thread reads, routes and publishes; slow brokers block it, and the server with it. Status updates and acks have
their own threads. A lost connection is reopened, with a growing delay between attempts; the server then resends
everything unconfirmed, and it is published again. Each connection rereads the source's state from the topics, because
another process may have captured in between.
"""

import logging
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Final

from flushtracker.capture.capture_config import CaptureConfig
from flushtracker.capture.capture_connection import CaptureConnection
from flushtracker.capture.collector import Collector
from flushtracker.capture.eviction.evictor import Evictor
from flushtracker.capture.live_capture_status import LiveCaptureStatus
from flushtracker.capture.needed_messages import require_messages
from flushtracker.capture.shapes.refused_shapes import RefusedShapes
from flushtracker.capture.shapes.shapes_file_reader import ShapesFileReader
from flushtracker.capture.slot_poller import SlotPoller
from flushtracker.capture.source.captured_source import CapturedSource
from flushtracker.capture.source.continuity import SlotPositions
from flushtracker.capture.source.prior_state import PriorState, Succession
from flushtracker.capture.source.source_opening import SourceOpening
from flushtracker.capture.source.upgrade_drain import UpgradeDrain
from flushtracker.capture.wire.slot_takeover import SlotTakeover
from flushtracker.capture.wire.source_acks import MissingTableLog, SourceAcks
from flushtracker.capture.wire.standby_status import StandbyStatus, StatusSender
from flushtracker.errors import BrokerUnavailableError, LostSlotError, PostgresUnavailableError, ReconnectError
from flushtracker.kafka.publisher import STOP_TIMEOUT_S, KafkaPublisher
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.postgres.connection import connect
from flushtracker.postgres.replication_stream import ReplicationStream
from flushtracker.postgres.server_tables import ServerTables
from flushtracker.postgres.slot import check_server, read_held_slot, read_slot
from flushtracker.postgres.upgrade_seal import drop_seals, read_seal
from flushtracker.status.capture_status import CaptureStatus
from flushtracker.status.http.peers import StatusPeer
from flushtracker.status.http.status_server import StatusServer
from flushtracker.tracking.acks.ack_reader import AckReader
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.source_name import SourceName

logger = logging.getLogger(__name__)

_FIRST_DELAY_S: Final = 0.2
_LONGEST_DELAY_S: Final = 10.0
_LOST_SLOT_S: Final = 60.0
"""Long enough for several Prometheus scrapes, so that the alert for a lost slot fires."""


class CaptureLoop:
    """Captures as configured until ``stop`` is set; ``new_epoch`` continues under a new source.

    So does ``upgraded_from``, on a server that was upgraded from the one with this system identifier. With
    ``before_upgrade`` it stops once everything is confirmed and the slot is sealed. With ``waits``, it waits while
    another process holds the slot.
    """

    def __init__(
        self,
        config: CaptureConfig,
        stop: Event,
        *,
        new_epoch: bool = False,
        upgraded_from: str | None = None,
        before_upgrade: bool = False,
        waits: bool = False,
    ) -> None:
        self._config = config
        self._before_upgrade = before_upgrade
        self._stop = stop
        self._takeover = SlotTakeover(config.postgres.slot, waits=waits)
        # Whether the next connection receives messages.
        self._with_messages = False
        self._refused = RefusedShapes()
        self._shapes = ShapesFileReader(config.shapes, config.intervals.shapes_ms / 1000, stop.wait, self._refused)
        self._publisher = KafkaPublisher(config.kafka, stop)
        self._missing_table_log = MissingTableLog(config.acks)
        self._slot_poller = SlotPoller(config.postgres.connection, config.postgres.slot)
        self._status = LiveCaptureStatus(
            lambda: self._publisher.pending_bytes,
            lambda: self._slot_poller.last,
            lambda: 0 if self._evictor is None else self._evictor.evicted,
            self._refused,
        )
        self._evictor: Evictor | None = None
        self._opening = SourceOpening(
            config.kafka,
            self._publisher,
            self._source_of,
            stop,
            lambda: TopicReader(config.kafka),
            Succession(new_epoch, upgraded_from),
        )
        self.has_answered = False
        """Whether the server was reached and is usable for capture; from then on, an unavailable server is retried."""

    @property
    def source(self) -> str | None:
        """The source being captured, once it is known."""
        source = self._opening.source
        return None if source is None else source.name

    def _source_of(self, prior: PriorState) -> CapturedSource:
        config = self._config
        return CapturedSource(prior, self._publisher, config.kafka.topics, config.event_limit, self._refused)

    def status(self) -> CaptureStatus:
        """Capture's current status, for any thread; the slot's figures are included only if ``status`` is
        configured.
        """
        return self._status.read()

    def run(self) -> None:
        """Capture until stopped. The server will resend everything unconfirmed to the next capture.

        Raises:
            FlushtrackerError: a retry cannot fix it, or the server is unavailable on the first connection.
        """
        try:
            with ExitStack() as threads:
                self._start_threads(threads)
                try:
                    self._capture_until_stopped()
                except LostSlotError as error:
                    self._report_lost_slot(error)
                    raise
            self._publisher.flush(STOP_TIMEOUT_S)
        except BrokerUnavailableError as error:
            if not self._stop.is_set():
                raise
            logger.warning("stopped with unconfirmed records reason=%s", error)
        finally:
            self._publisher.close()

    def _start_threads(self, threads: ExitStack) -> None:
        """Start the status server, the slot's poller and the evictor; none of them without ``status`` configured."""
        status, rule = self._config.status, self._config.eviction
        if status is None:
            return
        threads.enter_context(StatusServer(status, self.status))
        threads.enter_context(self._slot_poller)
        if rule is not None:
            self._evictor = threads.enter_context(Evictor(rule, list(map(StatusPeer, status.peers)), self.status))

    def _report_lost_slot(self, error: LostSlotError) -> None:
        """Keep the status readable for a while: otherwise the last status would report a healthy slot."""
        if self._config.status is not None:
            logger.error("slot lost, status readable until capture ends ends_in_s=%.0f reason=%s", _LOST_SLOT_S, error)
            self._stop.wait(_LOST_SLOT_S)

    def _capture_until_stopped(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._capture()
            except ReconnectError as error:
                self._with_messages = error.with_messages
                logger.info("connecting again messages=%s reason=%s", error.with_messages, error)
            except PostgresUnavailableError as error:
                if not self.has_answered:
                    raise
                if time.monotonic() - started > _LONGEST_DELAY_S:
                    delay_s = _FIRST_DELAY_S
                logger.warning("connection lost retry_in_s=%.1f reason=%s", delay_s, error)
                self._stop.wait(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _capture(self) -> None:
        postgres, intervals = self._config.postgres, self._config.intervals
        with ExitStack() as connections:
            control = connections.enter_context(closing(connect(postgres.connection)))
            check_server(control)
            tables = ServerTables(
                control, postgres.publication, postgres.slot, sets_identities=postgres.sets_identities
            )
            read_slot(control, postgres.slot)
            # From here on a retry can help: the server may return, or an earlier process may release the slot.
            self.has_answered = True
            # Before the timeline is read: a standby may be promoted at any time.
            was_standby = tables.is_standby()
            stream = connections.enter_context(closing(ReplicationStream(postgres.connection)))
            identity = stream.identify_system()
            history = stream.timeline_history(identity.timeline)
            start = partial(stream.start, postgres.slot, postgres.publication, messages=self._with_messages)
            self._takeover.start(start, identity.pid, control)
            self._with_messages = False
            confirmed_lsn = read_held_slot(control, postgres.slot, identity.pid).confirmed_lsn
            tables.hold_slot(identity.pid)
            tables.standby_timeline = identity.timeline if was_standby else None
            seal = read_seal(
                control,
                postgres.slot,
                postgres.publication,
                system_id=identity.system_id,
                confirmed_lsn=confirmed_lsn,
            )
            positions = SlotPositions(confirmed_lsn, max(identity.wal_lsn, tables.wal_end()), seal)
            if self._opening.source is None:
                tables.warn_of_refused_changes()
            status = StandbyStatus(confirmed_lsn)
            status.is_held = True
            sender = connections.enter_context(
                StatusSender(stream, status, status_s=intervals.status_ms / 1000, acks_s=intervals.acks_ms / 1000)
            )
            base = SourceName(identity.system_id, identity.timeline, postgres.slot)
            table = AckReader(self._config.acks, self._config.storage_options)
            if self._opening.begins_epoch:
                # A registry that was replaced does not know earlier epochs.
                base = replace(base, epoch=base.last_epoch(table.sources()) or 0)
            opened = self._opening.open(base, history, positions, partial(self._acks, table), connections)
            if opened is None:
                return
            source, acks, last_ack = opened
            source.connect(status, last_ack)
            sender.follow_acks(acks, source.stuck_ack)
            connections.enter_context(self._status.connection(source.name, status))
            if source.subscriptions is None and not self._shapes.wait_until_steady():
                return
            subscriptions = source.begin(tables, confirmed_lsn, self._shapes.load, self._opening.holder)
            require_messages(subscriptions.tables, confirmed_lsn, has_messages=stream.has_messages)
            drop_seals(control, postgres.slot)
            # Everything confirmed before an upgrade is acknowledged, and followed by what the slot sends now.
            follows_lsn = confirmed_lsn if last_ack is None else min(confirmed_lsn, last_ack + 1)
            check = source.resend_check(follows_lsn, last_ack, has_messages=stream.has_messages)
            collector = Collector(
                source.name, follows_lsn, subscriptions, source.outbox, self._converter(stream.codec), check
            )
            logger.info("capturing source=%s confirmed_lsn=%s", source.name, format_lsn(confirmed_lsn))
            self._status.handle_start(subscriptions, collector.counts)
            connection = CaptureConnection(source, collector, stream, sender, tables, intervals)
            drain = UpgradeDrain(
                control, postgres.slot, identity.system_id, subscriptions.tables.check, subscriptions.seal
            )
            connection.run(self._shapes, self._stop, self._evictor, drain if self._before_upgrade else None)
            source.release()

    def _acks(self, table: AckReader, source: str) -> SourceAcks:
        return SourceAcks(table, source, self._missing_table_log, self._status.handle_acks_read)

    def _converter(self, codec: str) -> FragmentConverter:
        config = self._config
        return FragmentConverter(
            config.max_batch_size, config.max_tx_size, max_batch_bytes=config.max_batch_bytes, codec=codec
        )
