"""``TransactionalProducer``: publishes records in Kafka transactions, and says where each record is before it commits.

Creating one fences every other with the same ``transactional.id``. Their transactions can no longer commit, and an open
one is ended. So a reader of committed records then finds all that they have written, and nothing is added later.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NoReturn, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not export these
    AclOperation,
    TopicDescription,
)

from flushtracker.errors import NEW_TOPIC, BrokerError, TopicLostError
from flushtracker.kafka.client import (
    ClientErrors,
    admin_client,
    kafka_error,
    missing_acl,
    producer_settings,
    rejected_options,
)
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin

_ROOM_S: Final = 0.1
_LOOK_S: Final = 5.0
"""How long records wait before it is checked whether their topics still take them."""
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})

_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_RECORD,
    }
)
"""What a broker refuses because of a topic's settings or ACLs, and takes in other topics."""

_T = TypeVar("_T")


class TransactionalProducer:
    """A producer under ``transactional_id``; close it when done.

    After a ``BrokerError`` nothing of the open transaction is committed, unless it was the commit itself that failed;
    read what is committed, with another producer. It is a ``TopicLostError`` if it is known to be about one topic.

    Raises:
        ConfigError: the client rejects its options.
        BrokerError: the brokers do not answer within ``config.retry_timeout_ms``, or refuse transactions.
    """

    def __init__(self, config: KafkaConfig, transactional_id: str, *, timeout_ms: int) -> None:
        self._servers, self._timeout_s = config.bootstrap_servers, config.retry_timeout_ms / 1000
        self._config, self._errors = config, ClientErrors(config.options)
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        try:
            self._producer = Producer(producer_settings(config, self._errors) | own)
        except (KafkaException, TypeError) as error:
            raise rejected_options(error, config.options) from error
        self._id = transactional_id
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        self._topics: set[str] = set()
        """Those of the open transaction."""
        self._absent: set[str] = set()
        """Those of them that the last answer lacked."""
        self._lost: TopicLostError | None = None
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            self._fail(error)

    def begin(self) -> None:
        self._places, self._topics, self._absent = {}, set(), set()
        self._try(self._producer.begin_transaction)

    def publish(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] = (),
        partition: int = -1,
    ) -> None:
        """Queue a record; without a ``partition``, the key decides; raises ``BrokerError``."""
        self._topics.add(topic)
        sent: list[tuple[str, str | bytes | None]] = [*headers]
        began_s = looked_s = time.monotonic()
        while True:
            try:
                self._producer.produce(topic, value, key, partition, self._on_delivery, headers=sent)
                break
            except BufferError:
                self._try(lambda: self._producer.poll(_ROOM_S))
                if time.monotonic() - looked_s >= _LOOK_S:
                    looked_s = time.monotonic()
                    self._check_waiting(began_s + self._timeout_s)
            except KafkaException as error:
                self._note(kafka_error(error), topic)
                self._fail(error)
        self._try(lambda: self._producer.poll(0))

    def places(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The first Kafka offset of the transaction's records so far and the one after the last, by partition.

        Waits until the brokers have them all; raises ``BrokerError``.
        """
        deadline = time.monotonic() + self._timeout_s
        while self._try(lambda: self._producer.flush(min(_LOOK_S, self._timeout_s))) and self._lost is None:
            self._check_waiting(deadline)
        if self._lost is not None:
            raise self._lost
        return dict(self._places)

    def _check_waiting(self, deadline: float) -> None:
        """Find why records wait, and raise that, or any ``BrokerError`` after the deadline."""
        if self._lost is None:
            self._find_lost()
        if self._lost is not None:
            raise self._lost
        if time.monotonic() > deadline:
            self._check_replicas()
            raise BrokerError(f"Kafka at {self._servers} has not confirmed all records: {self._errors.last}")

    def _find_lost(self) -> None:
        """Find a topic of the transaction that takes no records, which librdkafka does not say.

        It would ask without end to add a topic that was deleted, and names none that it may not write to. One broker
        alone may not know a topic yet, so two answers must lack it.
        """
        admin = admin_client(self._config, self._errors)
        described = admin.describe_topics(
            TopicCollection(sorted(self._topics)), include_authorized_operations=True, request_timeout=_LOOK_S
        )
        before, self._absent = self._absent, set()
        for topic, future in described.items():
            error = _why_not_written(future)
            if error is not None and error.code() in _GONE:
                self._absent.add(topic)
            if error is not None and (error.code() in _REFUSED or topic in before & self._absent):
                self._note(error, topic)

    def _check_replicas(self) -> None:
        """Raise a ``TopicLostError`` for a topic that takes no records for lack of replicas, and other errors."""
        admin = TopicAdmin(self._config, timeout_s=_LOOK_S)
        for topic in sorted(self._topics):
            if (lacking := admin.lacking_replicas([topic])) is not None:
                raise TopicLostError(lacking, topic, is_there=True)

    def commit(self) -> None:
        """Raises ``BrokerError`` if it is not, or may not be, committed."""
        self._try(lambda: self._producer.commit_transaction(self._timeout_s))

    def abort(self) -> None:
        """Drop the records of the open transaction; raises ``BrokerError``."""
        self._producer.purge()
        self._try(lambda: self._producer.abort_transaction(self._timeout_s))

    def close(self) -> None:
        """Abort what is open, as far as the brokers answer at once; the next producer does, too."""
        self._producer.purge()
        with suppress(KafkaException, SystemError):
            self._producer.abort_transaction(1)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            first, end = self._places.get(place, (offset, offset))
            self._places[place] = min(first, offset), max(end, offset + 1)
        else:
            self._note(error, message.topic() or "")

    def _note(self, error: KafkaError, topic: str) -> None:
        """Note why a topic takes no records."""
        if error.code() in _GONE | _REFUSED and self._lost is None:
            is_there = error.code() in _REFUSED
            remedy = missing_acl(error, "WRITE", f"topic {topic}") if is_there else f"; {NEW_TOPIC}"
            reason = f"topic {topic} takes no records: {self._errors.masked(error)}{remedy}"
            self._lost = TopicLostError(reason, topic, is_there=is_there)

    def _try(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except KafkaException as error:
            self._fail(error)
        except SystemError as error:
            # So Python reports a callback that the client calls with a fatal error pending, such as that it is fenced.
            pending: BaseException | None = error
            while isinstance(pending, SystemError):
                pending = pending.__cause__
            if not isinstance(pending, KafkaException):
                raise
            self._fail(pending)

    def _fail(self, exception: KafkaException) -> NoReturn:
        error = kafka_error(exception)
        if self._lost is None and self._topics and error.code() not in _FENCED:
            self._find_lost()
        if self._lost is not None:
            raise self._lost from exception
        if error.code() in _FENCED:
            raise BrokerError(f"another program has taken over as {self._id}; only one may run") from exception
        remedy = missing_acl(error, "WRITE", f"its topics and the transactional id {self._id}")
        raise BrokerError(
            f"Kafka at {self._servers} does not take a transaction of {self._id}: {self._errors.masked(error)}{remedy}"
        ) from exception


def _why_not_written(described: "Future[TopicDescription]") -> KafkaError | None:
    try:
        allowed = described.result().authorized_operations
    except KafkaException as exception:
        return kafka_error(exception)
    # Brokers other than Kafka's may not say what is allowed.
    is_allowed = not allowed or AclOperation.WRITE in allowed
    return None if is_allowed else KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
