"""Topics read on from where the last reading ended: for tests that look at them again and again."""

from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.support.waiting import wait_until

_TIMEOUT_S: Final = 300.0
_REQUEST_TIMEOUT_S: Final = 10.0
"""A broker that has just been started again may leave a request without an answer."""


class TailRecord(NamedTuple):
    """A record with a value, its place in its topic, and when its producer sent it, in ms since 1970."""

    partition: int
    offset: int
    value: bytes
    at_ms: int


class TopicTails:
    """Topics of so many partitions each; close it when done."""

    def __init__(self, bootstrap_servers: str, topics: list[str], partitions: int = 1) -> None:
        self._servers: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers}
        # Its own connection, on which no fetch that waits for records delays a request.
        self._admin = AdminClient(self._servers)
        self._consumer = Consumer({**self._servers, "group.id": "unused", "fetch.wait.max.ms": 20})
        self._next = {(topic, number): 0 for topic in topics for number in range(partitions)}
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in self._next])

    def read(self) -> dict[str, list[bytes]]:
        """By topic, the values of the records that it holds now and that were not returned before; no tombstones."""
        return {topic: [record.value for record in records] for topic, records in self.read_records().items()}

    def read_records(self) -> dict[str, list[TailRecord]]:
        """As :meth:`read`, with the records' places; those of one partition are in order."""
        found: dict[str, list[TailRecord]] = {topic: [] for topic, _ in self._next}
        ends = wait_until(self._ends, "the ends of the topics", _TIMEOUT_S)
        while any(self._next[place] < end for place, end in ends.items()):
            message = self._consumer.poll(_TIMEOUT_S)
            assert message is not None, f"gave up after {_TIMEOUT_S:g} s: records of {sorted(ends)}"
            assert message.error() is None, message.error()
            topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            if value := message.value():
                found[topic].append(TailRecord(partition, offset, value, message.timestamp()[1]))
            self._next[topic, partition] = offset + 1
        return found

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> dict[tuple[str, int], int]:
        """Where each partition ends; empty while a new topic has no leader yet."""
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        latest = {TopicPartition(*place): end for place in self._next}
        try:
            futures = self._admin.list_offsets(latest, request_timeout=_REQUEST_TIMEOUT_S)
            return {(each.topic, each.partition): future.result().offset for each, future in futures.items()}
        except KafkaException as error:
            # A client that saw the broker without a controller went on failing for minutes.
            print(f"the ends of the topics, once more: {error}", flush=True)  # noqa: T201  for the log of a soak
            self._admin = AdminClient(self._servers)
            return {}
