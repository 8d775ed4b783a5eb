"""``TopicTail``: the records that are written to a topic from now on, for a reader that needs no old ones.

It begins at the end of each partition, and begins there again after whatever goes wrong, so records may be missing
between two of :meth:`TopicTail.begin`. Nothing of where it has read is kept, neither here nor by the brokers.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from flushtracker.errors import BrokerError
from flushtracker.kafka.client import NO_LEADER, ClientErrors, kafka_error, missing_acl
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import is_about_group, new_consumer

TailRecord: TypeAlias = Message
"""A record as the client has it, because most are dropped by their key."""

AT_ONCE: Final = 1_000
"""The most records that are returned at once."""

_NO_TOPIC: Final = "; create it, or correct its name"
_CHECK_S: Final = 10.0
_ANSWER_S: Final = 5.0
_SETTINGS: Final = {
    # The proof that the brokers let this user read the topic, also if nothing is written to it.
    "enable.partition.eof": True,
    "enable.auto.offset.store": False,
    # What a reader that is slow for a moment has in memory: this, and an answer more.
    "queued.max.messages.kbytes": 16_000,
    "fetch.max.bytes": 16_000_000,
}


class TopicTail:
    """Reads all partitions of ``topic``; close it when done. For one thread.

    It reads uncommitted records, as :class:`~flushtracker.kafka.topic_reader.TopicReader` does.

    Raises:
        ConfigError: the client rejects its options.
    """

    def __init__(self, config: KafkaConfig, topic: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._where = f"topic {topic} at {config.bootstrap_servers}"
        self._topic = topic
        self._now_s = now_s
        self._errors = ClientErrors(config.options)
        self._consumer = new_consumer(config, self._errors, _SETTINGS, only_committed=False)
        self._partitions: list[int] = []
        self._ends: list[int] = []
        self._checked_s = 0.0
        self.is_read = False
        """Whether the brokers have sent records since the beginning, or that there are none."""

    def begin(self) -> None:
        """Continue at the end of each partition.

        Raises:
            BrokerError: no broker answers in time, there is no such topic, or it may not be described.
        """
        self.is_read = False
        self._partitions = self._listed()
        self._consumer.assign([TopicPartition(self._topic, number, OFFSET_END) for number in self._partitions])
        self._ends, self._checked_s = [], self._now_s()

    def records(self, timeout_s: float) -> list[TailRecord]:
        """The next records, at most ``AT_ONCE``, in order within each partition; waits for the first.

        Raises:
            BrokerError: the topic cannot be read on from here.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        # One call for all: each one gives the interpreter to another thread, which may keep it for milliseconds.
        return self._read([first, *self._consumer.consume(AT_ONCE - 1, 0)])

    def _read(self, messages: Sequence[Message]) -> list[TailRecord]:
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                if is_about_group(error):
                    continue
                raise self._unreadable(error)
            self.is_read = True
        return records

    def check(self) -> None:
        """Every ten seconds, look for partitions that are new, and for records that are too far behind.

        Call it when nothing has been left to read, or too much.

        Raises:
            BrokerError: as :meth:`begin`; or reading must begin again, because the number of partitions has changed, or
                some records of the previous look have not been returned yet.
        """
        if self._now_s() - self._checked_s < _CHECK_S:
            return
        listed = self._listed()
        if listed != self._partitions:
            raise BrokerError(f"{self._where} has {len(listed)} partitions now, and had {len(self._partitions)}")
        partitions = [TopicPartition(self._topic, number) for number in listed]
        places = [partition.offset for partition in self._consumer.position(partitions)]
        behind = sum(max(end - place, 0) for end, place in zip(self._ends, places, strict=False) if place >= 0)
        if behind:
            raise BrokerError(f"{self._where} is read too slowly: {behind} records are older than {_CHECK_S:.0f} s")
        # What the brokers said with the last records; negative if they have not said it yet.
        self._ends = [self._consumer.get_watermark_offsets(each, cached=True)[1] for each in partitions]
        self._checked_s = self._now_s()

    def close(self) -> None:
        self._consumer.close()

    def _listed(self) -> list[int]:
        try:
            found = self._consumer.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic]
        except KafkaException as error:
            # It notes what librdkafka has reported meanwhile, which says more.
            self._consumer.poll(0)
            reason = self._errors.masked(kafka_error(error)) if self._errors.is_silent else self._errors.last
            raise BrokerError(f"{self._where} cannot be read: {reason}") from error
        self._errors.clear()
        if found.error is not None and found.error.code() not in NO_LEADER:
            raise self._unreadable(found.error)
        if not found.partitions:
            raise BrokerError(f"{self._where} cannot be read: there is no such topic, or this user may not READ it")
        return sorted(found.partitions)

    def _unreadable(self, error: KafkaError) -> BrokerError:
        is_missing = error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        remedy = _NO_TOPIC if is_missing else missing_acl(error, "READ", f"topic {self._topic}")
        return BrokerError(f"{self._where} cannot be read: {self._errors.masked(error)}{remedy}")
