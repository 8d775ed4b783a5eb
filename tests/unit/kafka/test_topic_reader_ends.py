"""Where ``TopicReader`` takes a partition for read: only at the Kafka offset that it was told."""

from collections import deque
from contextlib import closing
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, TopicPartition

from flushtracker.errors import BrokerError
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka import topic_reader
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicReader

_CONFIG = KafkaConfig("kafka:9092", Topics("fragments", "flushes", "shapes", "shape_changes"), retry_timeout_ms=50)


class _Polled(NamedTuple):
    """What a consumer returns; with ``at_end``, the mark of a partition's end."""

    kafka_offset: int
    at_end: bool = False

    def topic(self) -> str:
        return "shapes"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.kafka_offset

    def key(self) -> bytes:
        return b"key"

    def value(self) -> bytes:
        return f"{self.kafka_offset}".encode()

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.at_end else None


class _Consumer:
    """A client of a broker with one partition, which ended at ``end``, and gives what is in ``polled``."""

    def __init__(self, end: int, *polled: _Polled) -> None:
        self._end, self._polled = end, deque(polled)

    def list_topics(self, topic: str, timeout: float) -> Any:  # noqa: ARG002
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=[0], error=None)})

    def get_watermark_offsets(self, of: TopicPartition, timeout: float) -> tuple[int, int]:  # noqa: ARG002
        return 0, self._end

    def poll(self, timeout: float) -> _Polled | None:  # noqa: ARG002
        return self._polled.popleft() if self._polled else None

    def assign(self, partitions: list[TopicPartition]) -> None:
        pass

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        pass


def _read(monkeypatch: pytest.MonkeyPatch, consumer: _Consumer) -> list[bytes]:
    monkeypatch.setattr(topic_reader, "Consumer", lambda _: consumer)
    with closing(TopicReader(_CONFIG)) as reader:
        return list(reader.values("shapes"))


def test_a_new_leader_that_knows_less_does_not_cut_the_registry_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that capture does not find would be added as new, at the end of the WAL: without what was before."""
    marks = _Consumer(3, _Polled(0), _Polled(1, at_end=True), _Polled(1), _Polled(2), _Polled(3, at_end=True))
    assert _read(monkeypatch, marks) == [b"0", b"1", b"2"]


def test_records_that_never_come_back_are_an_error_with_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unclean election they are lost; to go on without them would be a silent gap."""
    expected = (
        r"topic shapes at kafka:9092 cannot be read: partition 0 ended at Kafka offset 3, but now ends at 1; "
        "if it stays so, its new leader has lost records"
    )
    with pytest.raises(BrokerError, match=expected):
        _read(monkeypatch, _Consumer(3, _Polled(0), _Polled(1, at_end=True)))


def test_a_registry_that_now_ends_before_what_was_read_of_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new leader has lost records. A claim at one of their Kafka offsets would never be seen by who reads on."""
    monkeypatch.setattr(topic_reader, "Consumer", lambda _: _Consumer(3))
    expected = "partition 0 ended at Kafka offset 5, but now ends at 3; if it stays so, its new leader has lost records"
    with closing(TopicReader(_CONFIG)) as reader, pytest.raises(BrokerError, match=expected):
        reader.since("shapes", {0: 5})


def test_marks_of_transactions_and_compacted_records_are_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their Kafka offsets have no record, and the partition ends behind them."""
    assert _read(monkeypatch, _Consumer(5, _Polled(0), _Polled(5, at_end=True))) == [b"0"]


def test_a_broker_that_sends_nothing_is_silent_and_has_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message does not name an end that no broker has stated."""
    with pytest.raises(BrokerError, match="Kafka at kafka:9092 does not answer"):
        _read(monkeypatch, _Consumer(3, _Polled(0)))
