"""``KafkaPublisher`` whose owner may lose the right to publish; no broker answers."""

import time
from collections.abc import Iterator
from threading import Timer

import pytest
from confluent_kafka import KafkaError

from flushtracker.errors import BrokerUnavailableError, FencedError
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher, _RejectedRecord


@pytest.fixture
def publisher() -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher(KafkaConfig("127.0.0.1:1", Topics("f", "g", "s", "c")))
    yield publisher
    publisher.close()


def test_the_gate_is_asked_before_each_record(publisher: KafkaPublisher) -> None:
    """Also before those that one call of the owner queues after another."""
    answers = [True, False, False, True]

    def may_publish() -> bool:
        if not answers:
            raise FencedError("another one has it")
        return answers.pop(0)

    publisher.gate = may_publish
    publisher.publish("t", "k", "1")
    assert (publisher.pending, len(answers)) == (1, 3)
    publisher.publish("t", "k", "2")
    assert (publisher.pending, answers) == (2, [])
    with pytest.raises(FencedError):
        publisher.publish("t", "k", "3")
    assert publisher.pending == 2


def test_a_record_that_has_waited_for_the_queue_asks_again(publisher: KafkaPublisher) -> None:
    """The wait may take as long as the brokers are unavailable."""
    for _ in range(100_000):
        publisher.publish("t", "k", "1")
    answers = [True]

    def may_publish() -> bool:
        if not answers:
            raise FencedError("another one has it")
        return answers.pop()

    publisher.gate = may_publish
    with pytest.raises(FencedError):
        publisher.publish("t", "k", "2")
    assert publisher.pending == 100_000


def test_another_thread_discards_what_is_queued(publisher: KafkaPublisher) -> None:
    """The owner's thread may wait for the brokers, for as long as it likes."""
    publisher.publish("t", "k", "1")
    timer = Timer(0.1, publisher.abandon, (BrokerUnavailableError("too late"),))
    timer.start()
    started_s = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match="too late"):
        publisher.flush(30)
    assert time.monotonic() - started_s < 10
    # The failure is raised as soon as it is known, before the other thread has discarded anything.
    timer.join()
    assert publisher._producer.flush(30) == 0
    publisher.abandon(FencedError("another one has it"))
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match="too late"):
            publisher.publish("t", "k", "2")
    assert len(publisher._producer) == 0


def test_records_that_a_broker_lost_are_named(publisher: KafkaPublisher) -> None:
    """Kafka's own words are "Broker received an out of order sequence number", which says nothing of a loss."""
    rejected = _RejectedRecord(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER), "t", 2)
    assert publisher._describe_rejected(rejected) == (
        "topic t rejects a record, because its broker lost records that it had confirmed: Broker: Broker received an "
        "out of order sequence number; see what happened to the broker, and start again"
    )
