"""``KafkaPublisher``: publishes records to topics, in order within each partition and without gaps.

Records are queued, sent in the background in batches, and confirmed when all in-sync replicas have them. While the
brokers are unavailable the publisher retries. It never skips a record, because readers would encounter a gap. If a
record cannot be delivered, or nothing is confirmed for ``retry_timeout``, it fails permanently: it discards queued
records, and each later call raises the same error. Its owner then starts over from what was confirmed. Once the owner
is stopping, the timeout is a few seconds.

An owner that may lose the right to publish sets a ``gate``, which is called before each record is queued; another
thread may :meth:`~KafkaPublisher.abandon` queued records.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from flushtracker.errors import BrokerError, BrokerUnavailableError, FlushtrackerError
from flushtracker.kafka.client import ClientErrors, kafka_error, missing_acl, producer_settings, rejected_options
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin

logger = logging.getLogger(__name__)

_SETTINGS: Final = {
    # After a rejected record the client stops instead of sending the next one.
    "enable.gapless.guarantee": True,
    # Records have no timeouts of their own: if one expired, later ones would still be sent. The publisher has one
    # timeout for all of them.
    "message.timeout.ms": 0,
}
_RECORDS_PER_POLL: Final = 100
_SLICE_S: Final = 0.2
"""Waits are split, so that Ctrl-C takes effect promptly."""
_GATE_POLL_S: Final = 0.05

STOP_TIMEOUT_S: Final = 5.0
"""The timeout without a confirmation once the owner is stopping."""

_LOST_EXCEPTION: Final = "returned NULL without setting an exception"
_LOG_AFTER_S: Final = 5.0
_DIAGNOSIS_TIMEOUT_S: Final = 2.0


class KafkaPublisher:
    """Publishes to the brokers of ``config``, from one thread. ``stop`` is set once its owner is stopping.

    Callbacks run inside :meth:`publish`, :meth:`poll` and :meth:`flush`, in the order of a partition's records. Call
    one of them regularly: confirmations and errors are processed nowhere else.

    Raises:
        ConfigError: the client rejects its options.
    """

    def __init__(self, config: KafkaConfig, stop: Event | None = None) -> None:
        self._config = config
        self._stop = stop
        self._servers = config.bootstrap_servers
        self._retry_timeout_s = config.retry_timeout_ms / 1000
        self._errors = ClientErrors(config.options)
        self._rejected: _RejectedRecord | None = None
        self._failure: FlushtrackerError | None = None
        # Held while a record is queued, so that nothing is queued once the publisher was abandoned.
        self._lock = Lock()
        self.gate: Callable[[], bool] | None = None
        """Whether a record may be queued now; :meth:`publish` waits while it may not, and passes exceptions on."""
        self._until_poll = _RECORDS_PER_POLL
        self._topics: set[str] = set()
        self._published = 0
        self._confirmed = 0
        self._published_bytes = 0
        self._confirmed_bytes = 0
        # The count of confirmations at the last check, when it last rose, and whether the wait was logged.
        self._confirmed_before = 0
        self._progress_at = time.monotonic()
        self._logged_waiting = False
        try:
            self._producer = Producer(producer_settings(config, self._errors) | _SETTINGS)
        except (KafkaException, TypeError) as error:
            raise rejected_options(error, config.options) from error

    @property
    def pending(self) -> int:
        """The number of unconfirmed records."""
        return self._published - self._confirmed

    @property
    def pending_bytes(self) -> int:
        """The size of the values of unconfirmed records; may be read from any thread."""
        # In this order, so that a confirmation in between cannot make it negative.
        confirmed_bytes = self._confirmed_bytes
        return self._published_bytes - confirmed_bytes

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None:
        """Queue a record; waits for the gate, and while the queue is full.

        ``on_confirmed`` is called once, when the record is durable.

        Without a value it is a tombstone: compaction deletes the records with this key.

        Raises:
            BrokerError: this record or an earlier one cannot be delivered; every later call raises it again.
        """
        self._raise_failure()
        if self._published == self._confirmed:
            self._progress_at = time.monotonic()
        on_delivery = (
            self._on_delivery if on_confirmed is None else partial(self._on_delivery_with_callback, on_confirmed)
        )
        while True:
            # Again after each wait for the queue.
            self._wait_for_gate()
            try:
                with self._lock:
                    self._raise_failure()
                    self._producer.produce(topic, value, key, -1, on_delivery)
                break
            except BufferError:
                self.poll(_SLICE_S)
            except KafkaException as error:
                reason = kafka_error(error)
                if reason.code() == KafkaError._FATAL:
                    # An earlier record is the cause.
                    self._fail(BrokerError(self._describe_fatal(reason)))
                self._rejected = _RejectedRecord(reason, topic, _byte_count(key) + _byte_count(value))
                self._fail(BrokerError(self._describe_rejected(self._rejected)))
        self._topics.add(topic)
        self._published += 1
        self._published_bytes += len(value) if isinstance(value, str) and value.isascii() else _byte_count(value)
        self._until_poll -= 1
        if self._until_poll <= 0:
            self.poll()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Run the callbacks of confirmed records; wait at most ``timeout_s`` for an event.

        Raises:
            BrokerError: a record cannot be delivered; every later call raises it again.
        """
        self._until_poll = _RECORDS_PER_POLL
        self._serve(self._producer.poll, timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything published is confirmed.

        Raises:
            BrokerUnavailableError: records are still unconfirmed after ``timeout_s``; flush again, or continue.
            BrokerError: a record cannot be delivered; every later call raises it again.
        """
        self._raise_failure()
        deadline = time.monotonic() + timeout_s
        while self.pending:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise BrokerUnavailableError(f"{self._describe_unconfirmed(timeout_s)}; flush again")
            self._serve(self._producer.flush, min(left_s, _SLICE_S))

    def close(self) -> None:
        """Discard unconfirmed records, which may or may not have arrived; nothing is sent afterwards."""
        if self._failure is None:
            self._failure = BrokerError("the publisher is closed")
            self._purge()

    def abandon(self, failure: FlushtrackerError) -> None:
        """Discard unconfirmed records at once; from then on every call raises ``failure``. For any thread.

        Records in a request already passed to the broker's socket may still arrive.
        """
        with self._lock:
            if self._failure is None:
                self._failure = failure
                self._producer.purge()

    def _wait_for_gate(self) -> None:
        while self.gate is not None and not self.gate():
            self.poll(_GATE_POLL_S)

    def _serve(self, wait: Callable[[float], int], timeout_s: float) -> None:
        self._raise_failure()
        try:
            wait(timeout_s)
        except KafkaException as error:
            self._raise_failure()
            self._fail(BrokerError(self._describe_fatal(kafka_error(error))))
        except (KeyboardInterrupt, SystemError) as error:
            # A Ctrl-C inside a callback loses that confirmation. The client turns an exception without a value into a
            # SystemError.
            if isinstance(error, SystemError) and _LOST_EXCEPTION not in str(error):
                raise
            self._failure = BrokerError("publishing was interrupted")
            self._purge()
            raise KeyboardInterrupt from error
        # It may have been abandoned meanwhile; a rejected record is then a consequence.
        self._raise_failure()
        if self._rejected is not None:
            self._fail(BrokerError(self._describe_rejected(self._rejected)))
        self._check_progress()

    def _check_progress(self) -> None:
        """Fail if nothing has been confirmed for too long while records are pending."""
        now = time.monotonic()
        if self._confirmed != self._confirmed_before or not self.pending:
            if self._logged_waiting:
                logger.info("kafka available again servers=%s pending=%d", self._servers, self.pending)
            self._confirmed_before, self._progress_at, self._logged_waiting = self._confirmed, now, False
            self._errors.clear()
            return
        waited_s = now - self._progress_at
        is_stopping = self._stop is not None and self._stop.is_set()
        if waited_s >= (min(self._retry_timeout_s, STOP_TIMEOUT_S) if is_stopping else self._retry_timeout_s):
            self._fail(BrokerUnavailableError(f"{self._describe_unconfirmed(waited_s)}; fix that and start again"))
        if waited_s >= min(_LOG_AFTER_S, self._retry_timeout_s / 2) and not self._logged_waiting:
            self._logged_waiting = True
            logger.warning(
                "waiting for kafka servers=%s pending=%d gives_up_after_s=%g reason=%s",
                *(self._servers, self.pending, self._retry_timeout_s, self._unconfirmed_reason()),
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._confirmed += 1
            self._confirmed_bytes += len(message)
        elif self._rejected is None or self._rejected.is_consequence:
            self._rejected = _RejectedRecord(
                error, message.topic() or "", _byte_count(message.key()) + _byte_count(message.value())
            )

    def _on_delivery_with_callback(
        self, on_confirmed: Callable[[], None], error: KafkaError | None, message: Message
    ) -> None:
        self._on_delivery(error, message)
        if error is None:
            on_confirmed()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    def _fail(self, failure: BrokerError) -> NoReturn:
        """Fail permanently: no queued record may be delivered after one that was not."""
        with self._lock:
            self._failure = failure
        self._purge()
        raise failure

    def _purge(self) -> None:
        self._producer.purge()
        # Frees the records; the error that it may raise is already known.
        with suppress(KafkaException):
            self._producer.poll(0)

    def _describe_fatal(self, fatal: KafkaError) -> str:
        """Describe a fatal error by the rejected record's error, which arrives with it or just after."""
        deadline = time.monotonic() + _DIAGNOSIS_TIMEOUT_S
        while (self._rejected is None or self._rejected.is_consequence) and time.monotonic() < deadline:
            with suppress(KafkaException):
                self._producer.poll(_SLICE_S)
        if self._rejected is None or self._rejected.is_consequence:
            remedy = f"{missing_acl(fatal, 'WRITE', 'its topics')}; start again"
            return f"Kafka at {self._servers} accepts no more records: {self._errors.masked(fatal)}{remedy}"
        return self._describe_rejected(self._rejected)

    def _describe_rejected(self, record: "_RejectedRecord") -> str:
        topic = record.topic
        if record.error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return (
                f"topic {topic} rejects a record, because its broker lost records that it had confirmed: "
                f"{self._errors.masked(record.error)}; see what happened to the broker, and start again"
            )
        if record.error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            remedy = missing_acl(record.error, "WRITE", f"topic {topic}") or "; fix that"
            return f"topic {topic} rejects a record: {self._errors.masked(record.error)}{remedy} and start again"
        most = self._config.max_event_bytes
        if record.byte_count > most:
            return (
                f"a record of {record.byte_count} bytes for topic {topic} exceeds max_event_bytes, {most}; raise it, "
                "and the topic's max.message.bytes with it"
            )
        return (
            f"topic {topic} rejects a record of {record.byte_count} bytes: its max.message.bytes is "
            f"{self._max_message_bytes(topic)}; raise it to max_event_bytes, {most}, or lower that, and start again"
        )

    def _max_message_bytes(self, topic: str) -> str:
        try:
            return TopicAdmin(self._config, timeout_s=_DIAGNOSIS_TIMEOUT_S).setting(topic, "max.message.bytes")
        except BrokerError as error:
            return f"unknown ({error})"

    def _describe_unconfirmed(self, seconds: float) -> str:
        return (
            f"Kafka at {self._servers} has not confirmed {self.pending} records for {seconds:.0f} s: "
            f"{self._unconfirmed_reason()}"
        )

    def _unconfirmed_reason(self) -> str:
        """Why nothing is confirmed: the client's last error, or the state of the partitions.

        If a partition lacks replicas, the client retries without reporting anything.
        """
        if self._errors.is_silent:
            with suppress(FlushtrackerError):
                admin = TopicAdmin(self._config, timeout_s=_DIAGNOSIS_TIMEOUT_S)
                return admin.lacking_replicas(sorted(self._topics)) or self._errors.last
        return self._errors.last


@dataclass(frozen=True, slots=True)
class _RejectedRecord:
    """A record that cannot be delivered; ``byte_count`` is the size of its key and value before compression."""

    error: KafkaError
    topic: str
    byte_count: int

    @property
    def is_consequence(self) -> bool:
        """Whether it was only discarded because of an earlier error."""
        return self.error.code() == KafkaError._PURGE_QUEUE


def _byte_count(text: str | bytes | None) -> int:
    return len(text.encode() if isinstance(text, str) else text or b"")
