"""Reads topics without a consumer group or commits: ``TopicReader`` to the end, ``TopicFollower`` continuously."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from flushtracker.errors import BrokerError
from flushtracker.kafka.client import (
    NO_LEADER,
    ClientErrors,
    client_settings,
    kafka_error,
    missing_acl,
    rejected_options,
)
from flushtracker.kafka.kafka_config import KafkaConfig

_FIRST_TAIL: Final = 2_000
_TAIL_FACTOR: Final = 20
_LONGEST_TAIL: Final = 40_000
_SLICE_S: Final = 0.5
_PAUSE_S: Final = 0.1
_MAX_RECORDS: Final = 1_000


class TopicReader:
    """A consumer of the brokers of ``config``; close it when done.

    Most of flushtracker's own records are in no transaction, and it must read all of them. So it reads uncommitted:
    another producer's open transaction must not hide capture's later records. With ``only_committed``, it waits for
    open transactions.

    Every method raises ``BrokerError`` if the brokers do not respond within ``config.retry_timeout_ms``, or the topic
    does not exist.
    """

    def __init__(self, config: KafkaConfig, *, only_committed: bool = False) -> None:
        self._servers = config.bootstrap_servers
        self._retry_timeout_s = config.retry_timeout_ms / 1000
        self._errors = ClientErrors(config.options)
        # Only existing records are read, so a fetch need not wait for more.
        settings = {"enable.partition.eof": True, "fetch.wait.max.ms": 20}
        self._consumer = new_consumer(config, self._errors, settings, only_committed=only_committed)

    def values(self, topic: str) -> Iterator[bytes]:
        """The value of each record in a compacted topic, in order within each partition, without tombstones.

        Raises:
            BrokerError: as all methods; or a key is in two partitions, so that its last record is unknown.
        """
        # By the keys' hashes, to save memory: there may be a million shapes.
        partition_of: dict[int, int] = {}
        for message in self._messages(self._partitions(topic)):
            key, value, partition = message.key() or b"", message.value(), message.partition() or 0
            if value is None:
                continue
            if (other := partition_of.setdefault(hash(key), partition)) != partition:
                raise BrokerError(
                    f"topic {topic} at {self._servers} has the key {key.decode(errors='replace')} in partitions "
                    f"{other} and {partition}, so nobody knows which record is the last: the topic was given more "
                    "partitions, or another program writes to it"
                )
            yield value

    def ends(self, topic: str) -> dict[int, int]:
        """The Kafka offset after the last record of each partition."""
        return {partition.partition: end for partition, _, end in self._partitions(topic)}

    def begins(self, topic: str) -> dict[int, int]:
        """The first Kafka offset of each partition; above 0 if records were deleted, not only compacted."""
        return {partition.partition: begin for partition, begin, _ in self._partitions(topic)}

    def tails(self, topic: str, key: str) -> Iterator[list[bytes]]:
        """The values with this key, backwards from the end of the topic, in parts that grow up to a limit."""
        rest, length = self._partitions(topic), _FIRST_TAIL
        while rest:
            tails, rest = _divided(rest, length)
            yield [value for value, found in self._read(tails) if found == key.encode() and value is not None]
            length = min(length * _TAIL_FACTOR, _LONGEST_TAIL)

    def lasts(self, topic: str, is_wanted: Callable[[bytes, bytes], bool], starts: Sequence[int] = ()) -> list[bytes]:
        """The value of the last record in each partition that ``is_wanted`` by key and value; no tombstones.

        Only from ``starts`` on, by partition number, unless the topic is shorter. Reads backwards from the end until a
        record is found; that may be a lot if others write to the same partitions, but nothing is read twice.
        """
        found: dict[int, bytes] = {}
        known = dict(enumerate(starts))
        partitions = self._partitions(topic)
        rest = [
            (of, start if first < (start := known.get(of.partition, 0)) <= end else first, end)
            for of, first, end in partitions
        ]
        length = 1
        while rest:
            tails, rest = _divided(rest, length)
            # The first time, empty ranges are read too, so that a missing privilege is found now.
            for message in self._messages(tails, also_empty=length == 1):
                key, value, partition = message.key(), message.value(), message.partition()
                if key is not None and value is not None and partition is not None and is_wanted(key, value):
                    found[partition] = value
            rest = [each for each in rest if each[0].partition not in found]
            length *= _TAIL_FACTOR
        return list(found.values())

    def since(self, topic: str, starts: Mapping[int, int]) -> tuple[list[bytes], dict[int, int]]:
        """The values from these Kafka offsets on, by partition, or from the beginning; and the offsets after them.

        Raises:
            BrokerError: as all methods; or a partition ends before its start offset.
        """
        ranges = self._ranges_since(topic, starts)
        values = [value for value, _ in self._read(ranges) if value is not None]
        return values, {of.partition: end for of, _, end in ranges}

    def records_since(self, topic: str, starts: Mapping[int, int]) -> Iterator[tuple[int, int, bytes]]:
        """Likewise, partition, Kafka offset and value of each record."""
        for message in self._messages(self._ranges_since(topic, starts)):
            if (value := message.value()) is not None:
                yield message.partition() or 0, message.offset() or 0, value

    def _ranges_since(self, topic: str, starts: Mapping[int, int]) -> list[tuple[TopicPartition, int, int]]:
        ranges = []
        for of, first, end in self._partitions(topic):
            if (start := starts.get(of.partition, first)) > end:
                raise self._shortened(topic, of.partition, start, end)
            ranges.append((of, max(first, start), end))
        return ranges

    def between(self, topic: str, partition: int, first: int, end: int) -> Iterator[bytes]:
        """The values between two Kafka offsets of a partition, which must be there; the end is exclusive."""
        for value, _ in self._read([(TopicPartition(topic, partition), first, end)]):
            if value is not None:
                yield value

    def close(self) -> None:
        self._consumer.close()

    def _partitions(self, topic: str) -> list[tuple[TopicPartition, int, int]]:
        """Each partition, with its first Kafka offset and the one after its last."""
        deadline = time.monotonic() + self._retry_timeout_s
        while True:
            try:
                return self._try_partitions(topic)
            except KafkaException as error:
                # A partition may have no leader for a moment, after it was created or while a broker restarts.
                if time.monotonic() > deadline:
                    raise self._unreadable(topic, kafka_error(error)) from error
            time.sleep(_PAUSE_S)

    def _try_partitions(self, topic: str) -> list[tuple[TopicPartition, int, int]]:
        metadata = self._consumer.list_topics(topic, timeout=self._retry_timeout_s).topics[topic]
        if metadata.error is not None and metadata.error.code() not in NO_LEADER:
            raise self._unreadable(topic, metadata.error)
        partitions = [TopicPartition(topic, number) for number in metadata.partitions]
        if not partitions:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return [
            (partition, *self._consumer.get_watermark_offsets(partition, timeout=self._retry_timeout_s))
            for partition in partitions
        ]

    def _read(self, ranges: list[tuple[TopicPartition, int, int]]) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Value and key of every record in the ranges of Kafka offsets; the end of a range is exclusive."""
        for message in self._messages(ranges):
            yield message.value(), message.key()

    def _messages(
        self, ranges: list[tuple[TopicPartition, int, int]], *, also_empty: bool = False
    ) -> Iterator[Message]:
        """Exactly the records in the ranges of Kafka offsets; the end of a range is exclusive.

        With ``also_empty``, empty ranges are read, too, to find out whether this user may read the topic.
        """
        read = [each for each in ranges if also_empty or each[1] < each[2]]
        ends = {partition.partition: end for partition, _, end in read}
        short: dict[int, int] = {}
        self._consumer.assign([TopicPartition(of.topic, of.partition, start) for of, start, _ in read])
        deadline = time.monotonic() + self._retry_timeout_s
        while ends:
            message = _next(self._consumer, _SLICE_S)
            if message is None:
                if time.monotonic() > deadline:
                    raise self._silent(read[0][0].topic, ends, short)
                continue
            deadline = time.monotonic() + self._retry_timeout_s
            partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
            end = ends.get(partition, 0)
            if error is None and offset < end:
                yield message
            if error is None and offset + 1 >= end and ends.pop(partition, None) is not None:
                # Later records of this partition are not read while the others are.
                self._consumer.incremental_unassign([TopicPartition(str(message.topic()), partition)])
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                # Compaction may have removed the last records, or they are transaction markers; the partition still
                # ends after them. If it ends earlier, the broker does not know all of it yet.
                if offset < end:
                    short[partition] = offset
                else:
                    ends.pop(partition, None)
            elif error is not None and not error.retriable():
                raise self._unreadable(str(message.topic()), error)
        self._consumer.unassign()

    def _silent(self, topic: str, ends: Mapping[int, int], short: Mapping[int, int]) -> BrokerError:
        """The error for partitions that were not read up to their ``ends``; some ended earlier, at ``short``."""
        partition = next((number for number in sorted(short) if number in ends), None)
        if partition is None:
            return BrokerError(f"Kafka at {self._servers} does not answer: {self._errors.last}")
        return self._shortened(topic, partition, ends[partition], short[partition])

    def _shortened(self, topic: str, partition: int, before: int, now: int) -> BrokerError:
        return BrokerError(
            f"topic {topic} at {self._servers} cannot be read: partition {partition} ended at Kafka offset {before}, "
            f"but now ends at {now}; if it stays so, its new leader has lost records"
        )

    def _unreadable(self, topic: str, error: KafkaError) -> BrokerError:
        reason = f"{self._errors.masked(error)}{missing_acl(error, 'READ', f'topic {topic}')}"
        return BrokerError(f"topic {topic} at {self._servers} cannot be read: {reason}")


class ReadRecord(NamedTuple):
    """A record as it was read; ``key`` is ``None`` if it has none."""

    partition: int
    key: bytes | None
    value: bytes


class TopicFollower:
    """Follows ``topic`` from its beginning; close it when done. While the brokers are unavailable, it returns nothing.

    With ``only_committed``, it skips records of aborted transactions and waits for open ones, for topics that other
    programs write to. Without it, it reads all records, as :class:`TopicReader`.

    Raises:
        BrokerError: there is no such topic, or no broker answers within ``config.retry_timeout_ms``.
    """

    def __init__(self, config: KafkaConfig, topic: str, *, only_committed: bool) -> None:
        self._where = f"topic {topic} at {config.bootstrap_servers}"
        self._errors = ClientErrors(config.options)
        settings = {"fetch.wait.max.ms": 50}
        self._consumer = new_consumer(config, self._errors, settings, only_committed=only_committed)
        try:
            found = self._consumer.list_topics(topic, timeout=config.retry_timeout_ms / 1000).topics[topic]
        except KafkaException as error:
            raise self._unreadable(self._errors.masked(kafka_error(error))) from error
        if not found.partitions:
            raise self._unreadable("there is no such topic, or this user may not READ it")
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found.partitions])

    def values(self, timeout_s: float) -> list[bytes]:
        return [record.value for record in self.records(timeout_s)]

    def records(self, timeout_s: float) -> "list[ReadRecord]":
        """The next records, in order within each partition, without tombstones; waits at most ``timeout_s`` for the
        first.

        Raises:
            BrokerError: the topic can no longer be read.
        """
        records = []
        message = _next(self._consumer, timeout_s)
        while message is not None:
            error, value = message.error(), message.value()
            if error is None:
                if value is not None:
                    records.append(ReadRecord(message.partition() or 0, message.key(), value))
            elif not error.retriable():
                raise self._unreadable(self._errors.masked(error))
            message = _next(self._consumer, 0) if len(records) < _MAX_RECORDS else None
        return records

    def close(self) -> None:
        self._consumer.close()

    def _unreadable(self, reason: str) -> BrokerError:
        return BrokerError(f"{self._where} cannot be read: {reason}")


def _divided(
    ranges: list[tuple[TopicPartition, int, int]], length: int
) -> tuple[list[tuple[TopicPartition, int, int]], list[tuple[TopicPartition, int, int]]]:
    """The last ``length`` Kafka offsets of each range, and the remaining ranges before them."""
    tails = [(of, max(first, end - length), end) for of, first, end in ranges]
    before = [(of, first, start) for (of, first, _), (_, start, _) in zip(ranges, tails, strict=True)]
    return tails, [each for each in before if each[1] < each[2]]


def new_consumer(
    config: KafkaConfig, errors: ClientErrors, settings: dict[str, Any], *, only_committed: bool
) -> Consumer:
    """A consumer that only reads the partitions assigned to it."""
    own = {
        "group.id": f"flushtracker-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed" if only_committed else "read_uncommitted",
    }
    try:
        return Consumer(client_settings(config, errors) | own | settings)
    except (KafkaException, TypeError) as error:
        raise rejected_options(error, config.options) from error


def _next(consumer: Consumer, timeout_s: float) -> Message | None:
    message = consumer.poll(timeout_s)
    error = None if message is None else message.error()
    return None if error is not None and is_about_group(error) else message


def is_about_group(error: KafkaError) -> bool:
    """Whether the error is of no concern: librdkafka looks up the group's coordinator, although it is not used."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
