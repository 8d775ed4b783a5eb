"""``TopicReader``: what a topic holds now, read outside any consumer group; nothing is committed anywhere."""

import time
import uuid
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flushtracker.errors import BrokerError
from flushtracker.kafka.client import ClientErrors, client_settings, kafka_error, refused_options
from flushtracker.kafka.kafka_config import KafkaConfig

_FIRST_TAIL: Final = 2_000
_TAIL_FACTOR: Final = 20
_SLICE_S: Final = 0.5


class TopicReader:
    """A consumer of the brokers of ``config``; close it at the end.

    Every method raises ``BrokerError`` where the brokers do not answer within ``config.wait_ms``, or there is no such
    topic.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._servers = config.bootstrap_servers
        self._wait_s = config.wait_ms / 1000
        self._errors = ClientErrors(config.options)
        settings = {
            "group.id": f"flushtracker-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        try:
            self._consumer = Consumer(client_settings(config, self._errors) | settings)
        except (KafkaException, TypeError) as error:
            raise refused_options(error, config.options) from error

    def values(self, topic: str) -> Iterator[bytes]:
        """The value of each record that the topic holds now, each partition's in its order; no tombstones."""
        for value, _ in self._read([(partition, first) for partition, first, _ in self._partitions(topic)]):
            if value is not None:
                yield value

    def tails(self, topic: str, key: str) -> Iterator[list[bytes]]:
        """The values of the last records with this key: of longer and longer ends of the partitions, then no more."""
        partitions = self._partitions(topic)
        length = _FIRST_TAIL
        while True:
            starts = [(partition, max(first, end - length)) for partition, first, end in partitions]
            yield [value for value, found in self._read(starts) if found == key.encode() and value is not None]
            if all(end - length <= first for _, first, end in partitions):
                return
            length *= _TAIL_FACTOR

    def close(self) -> None:
        self._consumer.close()

    def _partitions(self, topic: str) -> list[tuple[TopicPartition, int, int]]:
        """Each partition, with its first Kafka offset and the one after its last."""
        try:
            metadata = self._consumer.list_topics(topic, timeout=self._wait_s).topics[topic]
            if metadata.error is not None:
                raise BrokerError(f"topic {topic} cannot be read: {self._errors.shown(metadata.error)}")
            partitions = [TopicPartition(topic, number) for number in metadata.partitions]
            return [
                (partition, *self._consumer.get_watermark_offsets(partition, timeout=self._wait_s))
                for partition in partitions
            ]
        except KafkaException as error:
            raise self._unreadable(topic, kafka_error(error)) from error

    def _read(self, starts: list[tuple[TopicPartition, int]]) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Value and key of every record from the given Kafka offsets to the present end of each partition."""
        unread = {partition.partition for partition, _ in starts}
        self._consumer.assign([TopicPartition(partition.topic, partition.partition, at) for partition, at in starts])
        deadline = time.monotonic() + self._wait_s
        while unread:
            message = self._consumer.poll(_SLICE_S)
            if message is None:
                if time.monotonic() > deadline:
                    raise BrokerError(f"Kafka at {self._servers} does not answer: {self._errors.last}")
                continue
            deadline = time.monotonic() + self._wait_s
            error = message.error()
            if error is None:
                yield message.value(), message.key()
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            elif not error.retriable():
                raise self._unreadable(str(message.topic()), error)
        self._consumer.unassign()

    def _unreadable(self, topic: str, error: KafkaError) -> BrokerError:
        return BrokerError(f"topic {topic} at {self._servers} cannot be read: {self._errors.shown(error)}")
