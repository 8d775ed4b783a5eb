"""What ends a transaction is an error with the reason: a full queue, a topic that takes nothing, a fatal error."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from flushtracker.errors import BrokerError, TopicLostError
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka import transactions
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.kafka.transactions import TransactionalProducer


class _FullProducer:
    def init_transactions(self, _timeout_s: float) -> None:
        pass

    def begin_transaction(self) -> None:
        pass

    def produce(self, *_: object, headers: object) -> None:  # noqa: ARG002
        raise BufferError

    def poll(self, _timeout_s: float) -> None:
        pass


class _Clock:
    def __init__(self) -> None:
        self._seconds: Iterator[int] = count()

    def monotonic(self) -> float:
        return next(self._seconds)


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    monkeypatch.setattr(transactions, "Producer", lambda _: _FullProducer())
    monkeypatch.setattr(transactions, "time", _Clock())
    config = KafkaConfig("kafka:9092", Topics("fragments", "flushes", "shapes", "shape_changes"))
    return TransactionalProducer(config, "id", timeout_ms=1000)


@pytest.mark.parametrize(("code", "expected"), [(KafkaError.UNKNOWN_TOPIC_OR_PART, TopicLostError), (0, BrokerError)])
def test_a_full_queue_is_an_error_in_time(
    monkeypatch: pytest.MonkeyPatch, producer: TransactionalProducer, code: int, expected: type[BrokerError]
) -> None:
    """The records of a deleted topic stay in the queue: the program waited for ever."""

    def found(self: Any) -> None:
        if code:
            self._note(KafkaError(code), "t")

    monkeypatch.setattr(TransactionalProducer, "_find_lost", found)
    monkeypatch.setattr(TopicAdmin, "lacking_replicas", lambda *_: None)
    producer.begin()
    with pytest.raises(BrokerError) as error:
        producer.publish("t", None, b"x")
    assert type(error.value) is expected


def test_a_topic_that_lacks_replicas_is_named_and_no_other_one(
    monkeypatch: pytest.MonkeyPatch, producer: TransactionalProducer
) -> None:
    """The program ended, for all shapes: the client sends its records again without end."""
    lacking = {"t": "partition 0 of topic t has 1 in-sync replicas, but min.insync.replicas is 2"}
    monkeypatch.setattr(TransactionalProducer, "_find_lost", lambda _: None)
    monkeypatch.setattr(TopicAdmin, "lacking_replicas", lambda _, topics: lacking.get(*topics))
    producer._topics.add("s")
    with pytest.raises(TopicLostError, match=r"but min\.insync\.replicas is 2") as error:
        producer.publish("t", None, b"x")
    assert (error.value.topic, error.value.is_there) == ("t", True)


def test_a_fatal_error_during_a_callback_is_that_error(
    monkeypatch: pytest.MonkeyPatch, producer: TransactionalProducer
) -> None:
    """A program whose successor had started ended with a ``SystemError``, which named no reason."""

    def flush(_timeout_s: float) -> int:
        inner = SystemError("code() returned a result with an exception set")
        inner.__cause__ = KafkaException(KafkaError(KafkaError._FENCED))
        raise SystemError("_on_delivery() returned a result with an exception set") from inner

    monkeypatch.setattr(producer._producer, "flush", flush, raising=False)
    with pytest.raises(BrokerError, match="another program has taken over as id; only one may run"):
        producer.places()
