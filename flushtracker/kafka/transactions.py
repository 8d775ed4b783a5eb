"""``TransactionalProducer``: publishes records in Kafka transactions, and says where each record is before it commits.

Creating one fences every other with the same ``transactional.id``. Their transactions can no longer commit, and an open
one is ended. So a reader of committed records then finds all that they have written, and nothing is added later.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from flushtracker.errors import BrokerError
from flushtracker.kafka.client import ClientErrors, kafka_error, missing_acl, producer_settings, rejected_options
from flushtracker.kafka.kafka_config import KafkaConfig

_ROOM_S: Final = 0.1
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})


class TransactionalProducer:
    """A producer under ``transactional_id``; close it when done.

    After a ``BrokerError`` nothing of the open transaction is committed, unless it was the commit itself that failed;
    read what is committed, with another producer.

    Raises:
        ConfigError: the client rejects its options.
        BrokerError: the brokers do not answer within ``config.retry_timeout_ms``, or refuse transactions.
    """

    def __init__(self, config: KafkaConfig, transactional_id: str, *, timeout_ms: int) -> None:
        self._servers, self._timeout_s = config.bootstrap_servers, config.retry_timeout_ms / 1000
        self._errors = ClientErrors(config.options)
        own = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        try:
            self._producer = Producer(producer_settings(config, self._errors) | own)
        except (KafkaException, TypeError) as error:
            raise rejected_options(error, config.options) from error
        self._id = transactional_id
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            self._fail(error)

    def begin(self) -> None:
        self._places = {}
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
        sent = list[tuple[str, str | bytes | None]](headers)
        while True:
            try:
                self._producer.produce(topic, value, key, partition, self._on_delivery, headers=sent)
                break
            except BufferError:
                self._producer.poll(_ROOM_S)
            except KafkaException as error:
                self._fail(error)
        self._producer.poll(0)

    def places(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The first Kafka offset of the transaction's records so far and the one after the last, by partition.

        Waits until the brokers have them all; raises ``BrokerError``.
        """
        if self._producer.flush(self._timeout_s):
            raise BrokerError(f"Kafka at {self._servers} has not confirmed all records: {self._errors.last}")
        return dict(self._places)

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
        with suppress(KafkaException):
            self._producer.abort_transaction(1)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            first, end = self._places.get(place, (offset, offset))
            self._places[place] = min(first, offset), max(end, offset + 1)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except KafkaException as error:
            self._fail(error)

    def _fail(self, exception: KafkaException) -> NoReturn:
        error = kafka_error(exception)
        if error.code() in _FENCED:
            raise BrokerError(f"another program has taken over as {self._id}; only one may run") from exception
        remedy = missing_acl(error, "WRITE", f"its topics and the transactional id {self._id}")
        raise BrokerError(
            f"Kafka at {self._servers} does not take a transaction of {self._id}: {self._errors.masked(error)}{remedy}"
        ) from exception
