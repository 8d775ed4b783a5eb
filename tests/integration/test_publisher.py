"""``KafkaPublisher`` on a real broker: every record once and in order, or an error; never a gap."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stubs lack NewTopic

from flushtracker.config.secret_options import SecretOptions
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.topic_rules import MAX_EVENT_BYTES
from flushtracker.kafka import publisher as publisher_module
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.topic_admin import TopicAdmin
from flushtracker.local.broker import LocalBroker
from tests.support.brokers import Broker
from tests.support.kafka_streams import create_topic, created_streams, records, streams_config, unreachable, values
from tests.support.second_broker import NODE_ID, second_broker

FLUSH_S = 60.0
TopicName = Callable[[str], str]


@pytest.fixture
def config(broker: Broker, topic_name: TopicName) -> KafkaConfig:
    """Four streams with one partition each."""
    return created_streams(broker.bootstrap_servers, topic_name)


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def publish_all(publisher: KafkaPublisher, topic: str, texts: Iterable[str]) -> None:
    for text in texts:
        publisher.publish(topic, "s", text)


def assert_ended(publisher: KafkaPublisher, message: str) -> None:
    """Every call raises the error that ended the publisher."""
    for call in (publisher.poll, partial(publisher.flush, 1), partial(publisher.publish, "t", "k", "v")):
        with pytest.raises(BrokerError) as again:
            call()
        assert str(again.value) == message


def test_records_keep_their_order_and_are_confirmed_once(broker: Broker, topic_name: TopicName) -> None:
    """In every partition, callbacks run in the order of the records; afterwards nothing is pending."""
    config = created_streams(broker.bootstrap_servers, topic_name, partitions=4)
    publisher = KafkaPublisher(config)
    confirmed: dict[str, list[str]] = {key: [] for key in numbers(20)}
    for value in numbers(5_000):
        key = str(int(value) % 20)
        publisher.publish(config.topics.flushes, key, value, partial(confirmed[key].append, value))
    publisher.flush(FLUSH_S)

    assert publisher.pending == 0
    expected = {key: numbers(5_000)[int(key) :: 20] for key in numbers(20)}
    assert confirmed == expected
    found = records(broker.bootstrap_servers, config.topics.flushes)
    assert len(found) == 4
    for partition in found.values():
        assert [int(value) for _, value in partition] == sorted(int(value) for _, value in partition)
    assert sorted(value for partition in found.values() for _, value in partition) == sorted(numbers(5_000))


def test_a_key_goes_to_the_same_partition_as_with_javas_clients(broker: Broker, topic_name: TopicName) -> None:
    """The hashes are from Kafka's own partitioner tests."""
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "abc": 479470107}
    config = created_streams(broker.bootstrap_servers, topic_name, partitions=7)
    publisher = KafkaPublisher(config)
    for key in hashes:
        publisher.publish(config.topics.fragments, key, "{}")
    publisher.flush(FLUSH_S)

    found = records(broker.bootstrap_servers, config.topics.fragments)
    partitions = {key: partition for partition, pairs in found.items() for key, _ in pairs}
    assert partitions == {key: (number & 0x7FFFFFFF) % 7 for key, number in hashes.items()}


def test_the_largest_record_is_accepted(config: KafkaConfig) -> None:
    """Even if it cannot be compressed. The queue holds only two of that size, so publishing blocks."""
    publisher = KafkaPublisher(config)
    size = MAX_EVENT_BYTES - 1_024
    for value in (os.urandom(size), bytes(size), bytes(size)):
        publisher.publish(config.topics.shape_changes, "s", value)
        assert publisher.pending <= 2
    publisher.flush(FLUSH_S)
    assert TopicAdmin(config).record_count("shape_changes") == 3


# The broker is unavailable


def test_nothing_is_lost_or_reordered_when_the_broker_is_killed(
    killable_broker: LocalBroker, topic_name: TopicName
) -> None:
    """Publishing continues meanwhile, and each record is confirmed once."""
    config = created_streams(killable_broker.bootstrap_servers, topic_name)
    publisher = KafkaPublisher(config)
    confirmed: list[int] = []
    restarted = threading.Event()

    def kill_and_start() -> None:
        killable_broker.kill()
        killable_broker.start()
        restarted.set()

    restart = threading.Thread(target=kill_and_start)
    count = count_at_restart = 0
    while not count_at_restart or count < count_at_restart + 20_000:
        if count == 20_000:
            restart.start()
        publisher.publish(config.topics.fragments, "s", str(count), partial(confirmed.append, count))
        count += 1
        if count > 20_000 and count % 1_000 == 0:
            # Leaves the processor to the broker.
            restarted.wait(0.05)
        if restarted.is_set() and not count_at_restart:
            count_at_restart = count
    publisher.flush(FLUSH_S)
    restart.join()

    assert confirmed == list(range(count))
    assert values(killable_broker.bootstrap_servers, config.topics.fragments) == numbers(count)


def test_a_flush_that_timed_out_can_be_repeated(
    killable_broker: LocalBroker,
    topic_name: TopicName,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker is unavailable for a while: this and its return are logged, and the records arrive."""
    monkeypatch.setattr(publisher_module, "_LOG_AFTER_S", 0.5)
    config = created_streams(killable_broker.bootstrap_servers, topic_name)
    publisher = KafkaPublisher(config)
    killable_broker.stop()
    with caplog.at_level(logging.INFO, logger="flushtracker.kafka.publisher"):
        publish_all(publisher, config.topics.fragments, numbers(10))
        with pytest.raises(BrokerError) as caught:
            publisher.flush(2)
        killable_broker.start()
        publisher.flush(FLUSH_S)
    assert str(caught.value).startswith(
        f"Kafka at {config.bootstrap_servers} has not confirmed 10 records for 2 s: {config.bootstrap_servers}/"
    )
    assert str(caught.value).endswith("Connection refused; flush again")
    waiting, back = caplog.messages
    assert waiting.startswith(
        f"waiting for kafka servers={config.bootstrap_servers} pending=10 gives_up_after_s=60 reason="
    )
    assert back == f"kafka available again servers={config.bootstrap_servers} pending=0"
    assert values(killable_broker.bootstrap_servers, config.topics.fragments) == numbers(10)


def test_a_full_queue_blocks_until_the_retry_timeout(config: KafkaConfig) -> None:
    """The publisher then fails permanently, with a bounded number of records in memory."""
    publisher = KafkaPublisher(unreachable(config, retry_timeout_ms=2_000))
    started = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        publish_all(publisher, config.topics.fragments, numbers(1_000_000))
    assert time.monotonic() - started >= 2
    # On a busy machine the time is over before the queue is full.
    found = re.fullmatch(
        r"Kafka at 127.0.0.1:9 has not confirmed ([0-9]+) records for [0-9]+ s: 127.0.0.1:9/bootstrap: Connect to "
        r"ipv4#127.0.0.1:9 failed: Connection refused; fix that and start again",
        str(caught.value),
    )
    assert found is not None
    assert 0 < int(found[1]) <= 100_000
    assert_ended(publisher, str(caught.value))


def test_idle_time_does_not_count_towards_the_timeout(config: KafkaConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source may be idle for hours; the first record after that is not overdue."""
    publisher = KafkaPublisher(config)
    publisher.publish(config.topics.fragments, "s", "0")
    publisher.flush(FLUSH_S)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 3_600)
    publish_all(publisher, config.topics.fragments, numbers(500)[1:])
    publisher.flush(FLUSH_S)
    assert values(config.bootstrap_servers, config.topics.fragments) == numbers(500)


# A record is refused


def test_nothing_follows_a_record_that_is_too_large_for_its_topic(broker: Broker, topic_name: TopicName) -> None:
    """The message states the topic, the size and the limit, and every later call raises the error again."""
    config = streams_config(broker.bootstrap_servers, topic_name)
    topic = config.topics.fragments
    create_topic(broker.bootstrap_servers, topic, {"max.message.bytes": "2097152"})
    publisher = KafkaPublisher(config)
    publish_all(publisher, topic, numbers(500))
    publisher.publish(topic, "key", os.urandom(3_000_000))
    with pytest.raises(BrokerError) as caught:
        publish_all(publisher, topic, ["after"] * 1_000_000)
    assert str(caught.value) == (
        f"topic {topic} rejects a record of 3000003 bytes: its max.message.bytes is 2097152; raise it to "
        "max_event_bytes, 67108864, or lower that, and start again"
    )
    assert_ended(publisher, str(caught.value))
    # The next writer appends directly after the records that were published before the error.
    successor = KafkaPublisher(config)
    successor.publish(topic, "s", "next")
    successor.flush(FLUSH_S)
    assert values(broker.bootstrap_servers, topic) == [*numbers(500), "next"]


def test_a_record_over_the_limit_of_all_topics_is_refused_at_once(config: KafkaConfig) -> None:
    """It exceeds the limit of correctly configured topics too, so the advice differs."""
    publisher = KafkaPublisher(config)
    with pytest.raises(BrokerError) as caught:
        publisher.publish(config.topics.shape_changes, "s", "x" * (MAX_EVENT_BYTES + 100_000))
    assert str(caught.value) == (
        f"a record of 67208865 bytes for topic {config.topics.shape_changes} exceeds max_event_bytes, "
        "67108864; raise it, and the topic's max.message.bytes with it"
    )
    with pytest.raises(BrokerError, match=r"^a record of 67208865 bytes "):
        publisher.flush(1)


def test_a_partition_that_lacks_replicas_is_named(
    killable_broker: LocalBroker, tmp_path: Path, topic_name: TopicName
) -> None:
    """A broker refuses records until it has them, which the client does not report: it tries again."""
    with second_broker(killable_broker, tmp_path / "second") as second:
        config = replace(streams_config(killable_broker.bootstrap_servers, topic_name), retry_timeout_ms=10_000)
        topic = config.topics.flushes
        new = NewTopic(topic, 1, replica_assignment=[[1, NODE_ID]], config={"min.insync.replicas": "2"})
        admin = AdminClient({"bootstrap.servers": killable_broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([new])[topic].result(60)
        publisher = KafkaPublisher(config)
        publish_all(publisher, topic, ["1"])
        publisher.flush(FLUSH_S)
        second.run_for(0)  # It stops answering, but does not refuse connections, which the client would report.
        publish_all(publisher, topic, ["2"])
        expected = (
            rf"has not confirmed 1 records for \d+ s: partition 0 of topic {topic} has 1 in-sync replicas, but "
            "min.insync.replicas is 2; start the brokers that have the others; fix that and start again"
        )
        with pytest.raises(BrokerError, match=expected):
            publisher.flush(120)
        publisher.close()
        second.kill()  # Suspended, it would not stop for a minute.


def test_a_topic_that_does_not_exist_is_reported(broker: Broker, topic_name: TopicName) -> None:
    """It may have been deleted; the publisher does not create it again."""
    config = streams_config(broker.bootstrap_servers, topic_name)
    publisher = KafkaPublisher(replace(config, options=SecretOptions({"topic.metadata.propagation.max.ms": "500"})))
    publisher.publish(config.topics.fragments, "s", "0")
    with pytest.raises(BrokerError) as caught:
        publisher.flush(FLUSH_S)
    assert str(caught.value) == (
        f"topic {config.topics.fragments} rejects a record: Broker: Unknown topic or partition; fix that and start "
        "again"
    )


# Callbacks, close and options


def test_an_error_in_a_callback_is_raised(config: KafkaConfig) -> None:
    """It is raised unchanged, and the records are published nevertheless."""
    publisher = KafkaPublisher(config)

    def fail() -> None:
        raise LookupError("of the callback")

    publisher.publish(config.topics.fragments, "s", "0", fail)
    with pytest.raises(LookupError, match="of the callback"):
        publisher.flush(FLUSH_S)
    publisher.publish(config.topics.fragments, "s", "1")
    publisher.flush(FLUSH_S)
    assert values(config.bootstrap_servers, config.topics.fragments) == ["0", "1"]


def press_ctrl_c() -> None:
    """Signal this thread: a signal to the process may reach one of the client's threads and be handled later."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def interrupt() -> None:
    raise KeyboardInterrupt("raised by the callback")


@pytest.mark.parametrize("interruption", [press_ctrl_c, interrupt])
def test_ctrl_c_in_a_callback_is_not_lost(config: KafkaConfig, interruption: Callable[[], None]) -> None:
    """It ends the publisher, since the interrupted confirmation is never repeated."""
    publisher = KafkaPublisher(config)
    publisher.publish(config.topics.fragments, "s", "0", interruption)
    with pytest.raises(KeyboardInterrupt):
        publisher.flush(FLUSH_S)
    assert_ended(publisher, "publishing was interrupted")


def test_a_closed_publisher_sends_nothing(config: KafkaConfig) -> None:
    """Queued records are discarded, as after an error elsewhere."""
    publisher = KafkaPublisher(replace(config, options=SecretOptions({"linger.ms": "60000"})))
    publisher.publish(config.topics.fragments, "s", "0")
    publisher.close()
    publisher.close()
    with pytest.raises(BrokerError, match=r"^the publisher is closed$"):
        publisher.flush(1)
    del publisher
    assert TopicAdmin(config).record_count("fragments") == 0


@pytest.mark.parametrize("options", [{"security.protocol": "hunter2"}, {"compression.type": "hunter2"}])
def test_options_that_the_client_rejects_are_a_configuration_error(
    config: KafkaConfig, options: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """It names the option without its value, before anything is published."""
    with pytest.raises(ConfigError, match=r"^Kafka's client rejects its options: ") as caught:
        KafkaPublisher(replace(config, options=SecretOptions(options)))
    assert next(iter(options)).partition(".")[0] in str(caught.value)
    assert "hunter2" not in str(caught.value) + "".join(capfd.readouterr())
