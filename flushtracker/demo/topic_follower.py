"""``TopicFollower``: a topic's records from the first on, and then as they come; nothing is committed anywhere."""

import uuid
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from flushtracker.errors import BrokerError
from flushtracker.kafka.client import ClientErrors, client_settings, kafka_error, refused_options
from flushtracker.kafka.kafka_config import KafkaConfig

_MOST_RECORDS: Final = 1_000


class TopicFollower:
    """Reads ``topic`` at the brokers of ``config``; close it at the end. While they are away, nothing comes.

    Raises:
        BrokerError: there is no such topic, or no broker answers within ``config.wait_ms``.
    """

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._where = f"topic {topic} at {config.bootstrap_servers}"
        self._errors = ClientErrors(config.options)
        settings = {
            "group.id": f"flushtracker-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
        try:
            self._consumer = Consumer(client_settings(config, self._errors) | settings)
        except (KafkaException, TypeError) as error:
            raise refused_options(error, config.options) from error
        try:
            found = self._consumer.list_topics(topic, timeout=config.wait_ms / 1000).topics[topic]
        except KafkaException as error:
            raise self._unreadable(self._errors.shown(kafka_error(error))) from error
        if not found.partitions:
            raise self._unreadable("there is no such topic")
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions])

    def values(self, timeout_s: float) -> list[bytes]:
        """The values of the next records, each partition's in its order; waits at most ``timeout_s`` for the first.

        Raises:
            BrokerError: the topic cannot be read any more.
        """
        values = []
        message = self._consumer.poll(timeout_s)
        while message is not None:
            error, value = message.error(), message.value()
            if error is None:
                if value is not None:
                    values.append(value)
            elif not error.retriable():
                raise self._unreadable(self._errors.shown(error))
            message = self._consumer.poll(0) if len(values) < _MOST_RECORDS else None
        return values

    def close(self) -> None:
        """Let go of the brokers."""
        self._consumer.close()

    def _unreadable(self, reason: str) -> BrokerError:
        return BrokerError(f"{self._where} cannot be read: {reason}")
