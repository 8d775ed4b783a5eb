"""``SinkGroup``: a sink that anybody could write: a consumer of Debezium's records, and a store of rows."""

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition


class SinkGroup:
    """The consumer group ``name`` of a topic. It stores first, and then commits its offsets.

    The store outlives the consumer: ``rows`` by their keys, and ``stored``, the offsets of all changes in it.
    """

    def __init__(self, servers: str, name: str, topic: str, partitions: int) -> None:
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        self.name = name
        self._assigned = [TopicPartition(topic, number) for number in range(partitions)]
        self.rows: dict[str, dict[str, Any]] = {}
        self.stored: list[tuple[int, int]] = []
        self.snapshot: list[str] = []
        self.operations: list[str] = []
        self._consumer: Consumer | None = None
        self._is_committed = True

    def step(self, most: int = 500, *, commits: bool = True) -> int:
        """Store the next records, at most this many; a crash before the commit leaves them to be read again.

        What an earlier step has not committed is committed, too: nothing more may come until then.
        """
        if self._consumer is None:
            self._consumer = Consumer(self._settings)
            found = self._consumer.committed(self._assigned, timeout=30)
            self._consumer.assign([TopicPartition(each.topic, each.partition, max(each.offset, 0)) for each in found])
        messages = self._consumer.consume(most, 0.2)
        for message in messages:
            assert message.error() is None, message.error()
            self._store(message.key(), message.value(), dict(message.headers() or []))
        self._is_committed &= not messages
        if commits and not self._is_committed:
            self._consumer.commit(asynchronous=False)
            self._is_committed = True
        return len(messages)

    def kill(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer, self._is_committed = None, True

    def _store(self, key: Any, value: Any, headers: dict[str, Any]) -> None:
        if value is None:
            assert key.decode() not in self.rows
            return
        envelope = json.loads(value)
        self.operations.append(envelope["op"])
        if envelope["op"] == "t":
            self.rows.clear()
        elif envelope["op"] == "d":
            self.rows.pop(key.decode(), None)
        else:
            self.rows[key.decode()] = envelope["after"]
        if envelope["op"] == "r":
            self.snapshot.append(key.decode())
        else:
            offset = json.loads(headers["flushtracker.offset"])
            self.stored.append((offset["tx_offset"], offset["op_offset"]))
