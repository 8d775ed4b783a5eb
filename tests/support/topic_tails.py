"""Topics read on from where the last reading ended: for tests that look at them again and again."""

from contextlib import suppress
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from tests.support.waiting import wait_until

_TIMEOUT_S: Final = 30.0


class TopicTails:
    """Topics of one partition each; close it when done."""

    def __init__(self, bootstrap_servers: str, topics: list[str]) -> None:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers}
        # Its own connection, on which no fetch that waits for records delays a request.
        self._admin = AdminClient(servers)
        self._consumer = Consumer({**servers, "group.id": "unused", "fetch.wait.max.ms": 20})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
        self._next = dict.fromkeys(topics, 0)

    def read(self) -> dict[str, list[bytes]]:
        """By topic, the values of the records that it holds now and that were not returned before; no tombstones."""
        found: dict[str, list[bytes]] = {topic: [] for topic in self._next}
        ends = wait_until(self._ends, "the ends of the topics", _TIMEOUT_S)
        while any(self._next[topic] < end for topic, end in ends.items()):
            message = self._consumer.poll(_TIMEOUT_S)
            assert message is not None, f"gave up after {_TIMEOUT_S:g} s: records of {sorted(ends)}"
            assert message.error() is None, message.error()
            topic = message.topic() or ""
            if value := message.value():
                found[topic].append(value)
            self._next[topic] = (message.offset() or 0) + 1
        return found

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> dict[str, int]:
        """Where each topic ends; empty while a new one has no leader yet."""
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        latest = {TopicPartition(topic, 0): end for topic in self._next}
        with suppress(KafkaException):
            futures = self._admin.list_offsets(latest, request_timeout=_TIMEOUT_S)
            return {partition.topic: future.result().offset for partition, future in futures.items()}
        return {}
