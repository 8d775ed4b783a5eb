"""What capture reads of a topic on a real broker: its end, whoever else writes there, and no more than is needed."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from flushtracker.errors import BrokerError
from flushtracker.kafka import topic_reader
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicFollower, TopicReader
from tests.support.brokers import Broker
from tests.support.kafka_streams import created_streams
from tests.support.waiting import wait_until

_PARTITIONS = 2


@pytest.fixture
def config(broker: Broker, topic_name: Callable[[str], str]) -> KafkaConfig:
    """Streams of two partitions."""
    return created_streams(broker.bootstrap_servers, topic_name, partitions=_PARTITIONS)


@pytest.fixture
def reader(config: KafkaConfig) -> Iterator[TopicReader]:
    """A reader of these."""
    with closing(TopicReader(config)) as reader:
        yield reader


def produce(
    config: KafkaConfig,
    partition: int,
    *records: tuple[str, str],
    transaction: str | None = None,
    topic: str | None = None,
) -> Producer:
    """Write records, each in a transaction of its own; the last one of ``transaction`` stays open."""
    settings = {"bootstrap.servers": config.bootstrap_servers, "linger.ms": 0}
    producer = Producer(settings if transaction is None else {**settings, "transactional.id": transaction})
    if transaction is not None:
        producer.init_transactions(60)
    for number, (key, value) in enumerate(records):
        if transaction is not None:
            producer.begin_transaction()
        producer.produce(topic or config.topics.fragments, value, key, partition)
        if transaction is not None and number < len(records) - 1:
            producer.commit_transaction(60)
    producer.flush(60)
    return producer


def test_the_last_records_are_found_behind_the_marks_of_transactions(config: KafkaConfig, reader: TopicReader) -> None:
    """A mark has a Kafka offset, and no reader gets it. An open transaction hides nothing that follows it."""
    topic = config.topics.fragments
    produce(config, 0, *[("mine", f"{number}") for number in range(5)])
    other = produce(config, 0, *[("other", "x")] * 10, transaction=topic)
    produce(config, 1, ("mine", "other partition"))
    assert sorted(reader.lasts(topic, lambda key, _: key == b"mine")) == [b"4", b"other partition"]
    before = reader.ends(topic)
    produce(config, 0, ("mine", "after"))
    assert sorted(reader.lasts(topic, lambda key, _: key == b"mine")) == [b"after", b"other partition"]
    assert reader.since(topic, before)[0] == [b"after"]
    other.commit_transaction(60)
    assert sorted(reader.lasts(topic, lambda key, _: key == b"mine")) == [b"after", b"other partition"]
    assert reader.since(topic, {})[0].count(b"x") == 10


def test_a_key_in_two_partitions_is_refused(config: KafkaConfig, reader: TopicReader) -> None:
    """After partitions were added: which record was the last is not known, and a shape's older entry may end it."""
    topic = config.topics.shapes
    produce(config, 0, ("other", "1"), ("mine", "before"), topic=topic)
    produce(config, 1, ("another", "1"), ("mine", "after"), topic=topic)
    with pytest.raises(BrokerError, match=r"has the key mine in partitions . and ., so nobody knows which record is"):
        list(reader.values(topic))


def test_a_follower_of_writers_waits_for_open_transactions_and_one_of_capture_does_not(config: KafkaConfig) -> None:
    """What writers notify may still be aborted; what capture publishes behind it is in no transaction."""
    topic = config.topics.fragments
    open_one = produce(config, 0, ("other", "open"), transaction=topic)
    produce(config, 0, ("mine", "behind it"))
    with (
        closing(TopicFollower(config, topic, only_committed=False)) as everything,
        closing(TopicFollower(config, topic, only_committed=True)) as committed,
    ):
        seen = wait_until(lambda: everything.values(0.2), "the records", 30)
        seen += everything.values(0.2)
        assert seen == [b"open", b"behind it"]
        assert committed.values(1.0) == []
        open_one.abort_transaction(60)
        assert wait_until(lambda: committed.values(0.2), "the committed record", 30) == [b"behind it"]


@pytest.mark.parametrize("first", [1, 7])
def test_a_topic_is_read_back_from_its_end_and_nothing_twice(
    config: KafkaConfig, reader: TopicReader, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """In parts of a limited size, which are those of all partitions together; from ``starts`` on, and not before."""
    monkeypatch.setattr(topic_reader, "_FIRST_TAIL", first)
    monkeypatch.setattr(topic_reader, "_LONGEST_TAIL", 50)
    topic, sizes = config.topics.fragments, (230, 90)
    for partition, size in enumerate(sizes):
        produce(config, partition, *[("other" if number % 3 else "mine", f"{number}") for number in range(size)])
    parts = [list(map(int, part)) for part in reader.tails(topic, "mine")]
    assert sorted(number for part in parts for number in part) == sorted([*range(0, 230, 3), *range(0, 90, 3)])
    assert len(parts[0]) <= _PARTITIONS * first
    assert max(map(len, parts)) <= _PARTITIONS * 17
    assert all(number >= 90 - first for number in parts[0])
    seen: list[bytes] = []

    def is_wanted(key: bytes, _: bytes) -> bool:
        seen.append(key)
        return False

    assert reader.lasts(topic, is_wanted, (200, 80)) == []
    assert len(seen) == 30 + 10
    seen.clear()
    assert reader.lasts(topic, is_wanted) == []
    assert len(seen) == sum(sizes)
