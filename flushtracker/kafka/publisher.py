"""``KafkaPublisher``: records into topics, each partition's in the order of publishing, with no gap among them.

Records are queued, sent in the background in batches, and confirmed when all in-sync replicas have them. While the
brokers are away the publisher waits and tries again by itself. It never skips a record, because a reader would then
meet a gap. Where one record cannot be delivered, or nothing at all is for too long, it gives up for good: it throws
away what is queued behind, and each later call raises the same error. Its owner starts anew from what was confirmed.
Once its owner is to stop, "too long" is a few seconds.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from flushtracker.errors import BrokerError, BrokerUnavailableError
from flushtracker.kafka.client import ClientErrors, client_settings, kafka_error, refused_options
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.kafka.topic_rules import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)

_SETTINGS: Final = {
    "acks": "all",
    "enable.idempotence": True,
    # When a record is refused, the client stops instead of sending the next one.
    "enable.gapless.guarantee": True,
    # No record gives up by itself, because those behind it would not: the publisher counts the time for all of them.
    "message.timeout.ms": 0,
    # As Java's clients do it, so that whoever else publishes by the same key meets the same partition.
    "partitioner": "murmur2_random",
    # Kafka's framing comes on top of a record of the largest size.
    "message.max.bytes": MAX_MESSAGE_BYTES + (64 << 10),
    # The bound of the queue: two records of the largest size, or that many small ones.
    "queue.buffering.max.kbytes": 2 * MAX_MESSAGE_BYTES // 1024 + 128,
    "queue.buffering.max.messages": 100_000,
}
_DEFAULTS: Final = {"compression.type": "zstd", "linger.ms": 20}

_RECORDS_PER_POLL: Final = 100
_SLICE_S: Final = 0.2
"""A wait is cut into slices, so that Ctrl-C need not wait for its end."""

STOP_WAIT_S: Final = 5.0
"""Once the owner is to stop, so long without a confirmation is too long."""

_LOST: Final = "returned NULL without setting an exception"
_LOG_AFTER_S: Final = 5.0
_LAST_WORDS_S: Final = 2.0


class KafkaPublisher:
    """Publishes to the brokers of ``config``, from one thread. Its owner is to stop once ``stop`` is set.

    Callbacks run inside :meth:`publish`, :meth:`poll` and :meth:`flush`, in the order of a partition's records. Call
    one of them now and then: confirmations and errors are not noticed otherwise.

    Raises:
        ConfigError: the client refuses its options.
    """

    def __init__(self, config: KafkaConfig, stop: Event | None = None) -> None:
        self._config = config
        self._stop = stop
        self._servers = config.bootstrap_servers
        self._retry_timeout_s = config.retry_timeout_ms / 1000
        self._errors = ClientErrors(config.options)
        self._refused: _Refused | None = None
        self._failure: BrokerError | None = None
        self._until_poll = _RECORDS_PER_POLL
        self._published = 0
        self._confirmed = 0
        # What was confirmed when last looked, since when that is all, and whether it was logged.
        self._confirmed_before = 0
        self._progress_at = time.monotonic()
        self._logged_waiting = False
        try:
            self._producer = Producer(_DEFAULTS | client_settings(config, self._errors) | _SETTINGS)
        except (KafkaException, TypeError) as error:
            raise refused_options(error, config.options) from error

    @property
    def pending(self) -> int:
        """How many records were published and are not confirmed."""
        return self._published - self._confirmed

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes, on_confirmed: Callable[[], None] | None = None
    ) -> None:
        """Queue a record; while the queue is full, wait. ``on_confirmed`` is called once, when the record is durable.

        Raises:
            BrokerError: this record or an earlier one cannot be delivered; from now on every call raises it.
        """
        self._raise_failure()
        if self._published == self._confirmed:
            self._progress_at = time.monotonic()
        delivered = self._delivered if on_confirmed is None else partial(self._delivered_and_told, on_confirmed)
        while True:
            try:
                self._producer.produce(topic, value, key, -1, delivered)
                break
            except BufferError:
                self.poll(_SLICE_S)
            except KafkaException as error:
                reason = kafka_error(error)
                if reason.code() == KafkaError._FATAL:
                    # Not this record is the cause, but one before it.
                    self._fail(BrokerError(self._last_words(reason)))
                self._refused = _Refused(reason, topic, _byte_count(key) + _byte_count(value))
                self._fail(BrokerError(self._refusal(self._refused)))
        self._published += 1
        self._until_poll -= 1
        if self._until_poll <= 0:
            self.poll()

    def poll(self, timeout_s: float = 0.0) -> None:
        """Call back for what was confirmed; wait for something at most ``timeout_s``.

        Raises:
            BrokerError: a record cannot be delivered; from now on every call raises it.
        """
        self._until_poll = _RECORDS_PER_POLL
        self._serve(self._producer.poll, timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything published is confirmed.

        Raises:
            BrokerUnavailableError: it is not within ``timeout_s``: then flush again, or go on.
            BrokerError: a record cannot be delivered; from now on every call raises it.
        """
        self._raise_failure()
        deadline = time.monotonic() + timeout_s
        while self.pending:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise BrokerUnavailableError(f"{self._unconfirmed(timeout_s)}; flush again")
            self._serve(self._producer.flush, min(left_s, _SLICE_S))

    def close(self) -> None:
        """Throw away what is not confirmed, which may or may not arrive; nothing is sent afterwards."""
        if self._failure is None:
            self._failure = BrokerError("the publisher is closed")
            self._purge()

    def _serve(self, wait: Callable[[float], int], timeout_s: float) -> None:
        self._raise_failure()
        try:
            wait(timeout_s)
        except KafkaException as error:
            self._fail(BrokerError(self._last_words(kafka_error(error))))
        except (KeyboardInterrupt, SystemError) as error:
            # A Ctrl-C while the client calls back costs a confirmation; the client loses an exception without a value.
            if isinstance(error, SystemError) and _LOST not in str(error):
                raise
            self._failure = BrokerError("publishing was interrupted")
            self._purge()
            raise KeyboardInterrupt from error
        if self._refused is not None:
            self._fail(BrokerError(self._refusal(self._refused)))
        self._watch()

    def _watch(self) -> None:
        """Give up when nothing is confirmed for too long, although something is pending."""
        now = time.monotonic()
        if self._confirmed != self._confirmed_before or not self.pending:
            if self._logged_waiting:
                logger.info("kafka answers again servers=%s pending=%d", self._servers, self.pending)
            self._confirmed_before, self._progress_at, self._logged_waiting = self._confirmed, now, False
            self._errors.clear()
            return
        waited_s = now - self._progress_at
        is_stopping = self._stop is not None and self._stop.is_set()
        if waited_s >= (min(self._retry_timeout_s, STOP_WAIT_S) if is_stopping else self._retry_timeout_s):
            self._fail(BrokerUnavailableError(f"{self._unconfirmed(waited_s)}; mend that and start again"))
        if waited_s >= min(_LOG_AFTER_S, self._retry_timeout_s / 2) and not self._logged_waiting:
            self._logged_waiting = True
            logger.warning(
                "waiting for kafka servers=%s pending=%d gives_up_after_s=%g reason=%s",
                *(self._servers, self.pending, self._retry_timeout_s, self._errors.last),
            )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._confirmed += 1
        elif self._refused is None:
            self._refused = _Refused(
                error, message.topic() or "", _byte_count(message.key()) + _byte_count(message.value())
            )

    def _delivered_and_told(self, on_confirmed: Callable[[], None], error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        if error is None:
            on_confirmed()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    def _fail(self, failure: BrokerError) -> NoReturn:
        """Give up for good: nothing that is queued may be delivered behind what was not."""
        self._failure = failure
        self._purge()
        raise failure

    def _purge(self) -> None:
        self._producer.purge()
        # Frees the records; what it says of them is known.
        with suppress(KafkaException):
            self._producer.poll(0)

    def _last_words(self, fatal: KafkaError) -> str:
        """What the error of the refused record itself says, which comes with or just after the fatal one."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._refused is None and time.monotonic() < deadline:
            with suppress(KafkaException):
                self._producer.poll(_SLICE_S)
        if self._refused is None:
            return f"Kafka at {self._servers} takes no more records: {self._errors.shown(fatal)}; start again"
        return self._refusal(self._refused)

    def _refusal(self, refused: "_Refused") -> str:
        topic = refused.topic
        if refused.error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
            return (
                f"topic {topic} does not take a record: {self._errors.shown(refused.error)}; mend that and start again"
            )
        if refused.byte_count > MAX_MESSAGE_BYTES:
            return (
                f"a record of {refused.byte_count} bytes for topic {topic} is over the limit of {MAX_MESSAGE_BYTES} "
                "bytes; cut transactions into smaller fragments"
            )
        return (
            f"topic {topic} refuses a record of {refused.byte_count} bytes: its max.message.bytes is "
            f"{self._limit(topic)}; raise that to {MAX_MESSAGE_BYTES} and start again"
        )

    def _limit(self, topic: str) -> str:
        try:
            return TopicAdmin(self._config, timeout_s=_LAST_WORDS_S).setting(topic, "max.message.bytes")
        except BrokerError as error:
            return f"not known, since {error}"

    def _unconfirmed(self, seconds: float) -> str:
        return (
            f"Kafka at {self._servers} has not confirmed {self.pending} records for {seconds:.0f} s: "
            f"{self._errors.last}"
        )


@dataclass(frozen=True, slots=True)
class _Refused:
    """A record that cannot be delivered; ``byte_count`` is that of its key and value, before compression."""

    error: KafkaError
    topic: str
    byte_count: int


def _byte_count(text: str | bytes | None) -> int:
    return len(text.encode() if isinstance(text, str) else text or b"")
