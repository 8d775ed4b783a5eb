"""``ChangesReader``: reads a topic from given Kafka offsets, and again from earlier ones."""

from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import TopicPartition

from flushtracker.errors import BrokerError
from flushtracker.kafka.client import ClientErrors
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicReader, is_about_group, new_consumer


class ChangesReader:
    """Follows ``topic``, committed records only, from ``positions`` on, elsewhere from the beginning.

    ``positions`` then has the Kafka offset of the next record of each partition. A position that is no longer in the
    topic is moved to its beginning. The lost events are a gap, or were sent again.

    Raises:
        BrokerError: there is no such topic, or no broker answers within ``config.retry_timeout_ms``.
    """

    def __init__(self, config: KafkaConfig, topic: str, positions: Mapping[int, int]) -> None:
        self._topic, self._where = topic, f"topic {topic} at {config.bootstrap_servers}"
        with closing(TopicReader(config)) as reader:
            begins, ends = reader.begins(topic), reader.ends(topic)
        self.positions = {
            partition: at if begin <= (at := positions.get(partition, begin)) <= ends[partition] else begin
            for partition, begin in begins.items()
        }
        self._errors = ClientErrors(config.options)
        self._consumer = new_consumer(config, self._errors, {"fetch.wait.max.ms": 50}, only_committed=True)
        self._consumer.assign([TopicPartition(topic, *place) for place in self.positions.items()])

    def records(self, most: int, timeout_s: float) -> Iterator[tuple[int, int, bytes]]:
        """Partition, Kafka offset and value of the next records; raises ``BrokerError`` if it can no longer be read."""
        for message in self._consumer.consume(most, timeout_s):
            error, value = message.error(), message.value()
            if error is not None:
                if not error.retriable() and not is_about_group(error):
                    raise BrokerError(f"{self._where} cannot be read: {self._errors.masked(error)}")
                continue
            partition, offset = message.partition() or 0, message.offset() or 0
            self.positions[partition] = offset + 1
            if value is not None:
                yield partition, offset, value

    def rewind(self, partition: int, offset: int) -> None:
        """Read the partition again from this Kafka offset on, not in the middle of :meth:`records`."""
        if offset < self.positions[partition]:
            self.positions[partition] = offset
            self._consumer.assign([TopicPartition(self._topic, *place) for place in self.positions.items()])

    def close(self) -> None:
        self._consumer.close()
