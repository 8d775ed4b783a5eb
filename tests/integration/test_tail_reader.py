"""The hot tail from real brokers: what is read, and what becomes of it when they, or the topic, are away."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # its stubs lack these

from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.serve_config import TailConfig
from flushtracker.errors import ConfigError
from flushtracker.events.records import record_of
from flushtracker.kafka import topic_tail
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.local.broker import LocalBroker
from flushtracker.serve.tail import tail_reader
from tests.support.brokers import Broker
from tests.support.documented_acls import acls_of
from tests.support.kafka_access import create_access
from tests.support.kafka_streams import create_topic, created_streams, topic_names
from tests.support.secured_broker import SecuredBroker
from tests.support.seeds import every
from tests.support.shape_log_rows import SOURCE
from tests.support.tail_reading import TailReading, until, whole_transaction
from tests.support.waiting import wait_until

_TIMEOUT_S: Final = 60

Read = Callable[..., TailReading]


@pytest.fixture
def read() -> Iterator[Read]:
    """Makes a reader of a topic, which closes after the test."""
    with ExitStack() as readers:

        def make(servers: str, topic: str, options: dict[str, str] | None = None, busy_s: float = 0.0) -> TailReading:
            config = TailConfig(servers, topic, SecretOptions(options or {}))
            found = TailReading(config, "users", busy_s=busy_s)
            readers.callback(found.reader.close)
            return found

        yield make


@pytest.fixture
def streams(broker: Broker, topic_name: Callable[[str], str]) -> KafkaConfig:
    """Topics of two partitions."""
    return created_streams(broker.bootstrap_servers, topic_name, partitions=2)


def produce(servers: str, topic: str, *transactions: int, shape_id: str = "users", note: str = "é") -> None:
    """Write transactions, each of which follows the number before it."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for tx in transactions:
        record = record_of(whole_transaction(tx, tx - 1, shape_id, note))
        producer.produce(topic, record.value, record.key)
    assert producer.flush(_TIMEOUT_S) == 0


async def test_what_is_written_from_now_on_reaches_the_tails(streams: KafkaConfig, read: Read) -> None:
    """And nothing from before. Of the reader, the brokers keep nothing: no group, and no offset."""
    servers, topic = streams.bootstrap_servers, streams.topics.shape_changes
    produce(servers, topic, 1, 2)
    reading = read(servers, topic)
    await reading.until_read()
    produce(servers, topic, 3, 4)
    produce(servers, topic, 1, shape_id="other")
    await until(lambda: reading.reader.skipped, "the other shape is skipped")
    await reading.until_has(3, 4)
    assert (reading.reader.records, reading.reader.unreadable, reading.reader.outages) == (3, 0, 0)
    assert reading.reader.lag_ms is not None
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.list_consumer_groups().result(_TIMEOUT_S)
    assert not [each.group_id for each in found.valid if each.group_id.startswith("flushtracker-")]


async def test_open_transaction_of_another_program_hides_nothing(streams: KafkaConfig, read: Read) -> None:
    """Whatever the user's options say: capture's records behind it are in no transaction."""
    servers, topic = streams.bootstrap_servers, streams.topics.shape_changes
    reading = read(servers, topic, {"isolation.level": "read_committed"})
    await reading.until_read()
    other = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    await asyncio.to_thread(other.init_transactions, _TIMEOUT_S)
    other.begin_transaction()
    for partition in range(2):
        other.produce(topic, "open", "other", partition)
    assert other.flush(_TIMEOUT_S) == 0
    produce(servers, topic, 1)
    await reading.until_has(1)
    await asyncio.to_thread(other.abort_transaction, _TIMEOUT_S)


@every(2, 1)
async def test_kafka_stopped(killable_broker: LocalBroker, topic_name: Callable[[str], str], read: Read) -> None:
    """All is forgotten, without a processor's time; a second after the broker is back, changes are read again."""
    servers, topic = killable_broker.bootstrap_servers, topic_name("shape_changes")
    create_topic(servers, topic, {})
    reading = read(servers, topic)
    await reading.until_read()
    produce(servers, topic, 1)
    await reading.until_has(1)
    killable_broker.kill()
    await until(lambda: reading.reader.problem, "the outage is noticed")
    await reading.until_has()
    used_s, threads = os.times(), threading.active_count()
    await asyncio.sleep(5)
    assert sum(os.times()[:2]) - sum(used_s[:2]) < 1, "a fifth of a core, for this loop, too"
    assert threading.active_count() <= threads
    await asyncio.to_thread(killable_broker.start)
    await until(lambda: reading.reader.problem is None, "the topic is read again")
    produce(servers, topic, 2, 3)
    await reading.until_has(2, 3)
    assert reading.reader.outages == 1


async def test_broker_lost_acknowledged_records(
    killable_broker: LocalBroker, topic_name: Callable[[str], str], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic ends before what was read: out of range. What capture sends again is read from its new end on."""
    # The client finds out by itself, before anybody asks.
    monkeypatch.setattr(topic_tail, "_CHECK_S", 3_600)
    servers, topic = killable_broker.bootstrap_servers, topic_name("shape_changes")
    create_topic(servers, topic, {})
    produce(servers, topic, 1)
    reading = read(servers, topic)
    await reading.until_read()
    (segment,) = (killable_broker._folder / "data").glob(f"{topic}-0/*.log")
    kept = wait_until(lambda: segment.stat().st_size, "the record is in the file", _TIMEOUT_S)
    produce(servers, topic, *range(2, 12))
    await reading.until_has(*range(2, 12))
    killable_broker.kill()
    os.truncate(segment, kept)
    await asyncio.to_thread(killable_broker.start)
    await until(lambda: reading.reader.outages and reading.reader.problem is None, "it has begun again")
    await reading.until_has()
    produce(servers, topic, *range(2, 14))
    await reading.until_has(*range(2, 14))


async def test_topic_missing_then_deleted_and_created_anew(
    broker: Broker,
    topic_name: Callable[[str], str],
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each time, changes are read once the topic is there. At the start, the log says what to do."""
    monkeypatch.setattr(topic_tail, "_CHECK_S", 0.5)
    servers, topic = broker.bootstrap_servers, topic_name("shape_changes")
    admin, reading = AdminClient({"bootstrap.servers": servers}), read(servers, topic)
    reading.reader.start()
    await until(lambda: "Unknown topic" in (reading.reader.problem or ""), "there is no topic")
    (line,) = [each for each in caplog.messages if each.startswith("tail cannot be read ")]
    assert f"topic {topic} at {servers} cannot be read: " in line
    assert line.endswith("; create it, or correct its name")
    for outages in (1, 2):
        await asyncio.to_thread(create_topic, servers, topic, {})
        await until(lambda: reading.reader.problem is None, "the topic is read")
        produce(servers, topic, *range(1, 6))
        await reading.until_has(*range(1, 6))
        assert reading.reader.outages == outages
        admin.delete_topics([topic])[topic].result(_TIMEOUT_S)
        await until(lambda: reading.reader.problem, "the topic is away")
        await reading.until_has()
        await asyncio.to_thread(wait_until, lambda: topic not in topic_names(servers), "it is deleted", _TIMEOUT_S)


async def test_partitions_added(
    streams: KafkaConfig, read: Read, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shape's changes may go to another partition now, so all begins again."""
    monkeypatch.setattr(topic_tail, "_CHECK_S", 0.5)
    servers, topic = streams.bootstrap_servers, streams.topics.shape_changes
    reading = read(servers, topic)
    await reading.until_read()
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(_TIMEOUT_S)
    reason = f"topic {topic} at {servers} has 5 partitions now, and had 2"
    await until(lambda: reason in caplog.text, "they are noticed")
    await until(lambda: reading.reader.problem is None, "the topic is read again")
    shapes = [f"shape-{number}" for number in range(20)]
    for shape_id in shapes:
        reading.tails.ask((SOURCE, shape_id), 0)
        produce(servers, topic, 7, shape_id=shape_id)
        await reading.until_has(7, shape_id=shape_id)


async def test_reader_that_cannot_keep_up_goes_to_the_end(
    streams: KafkaConfig, read: Read, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loop is so busy that the tail would be older than the log. What it holds meanwhile is bounded."""
    monkeypatch.setattr(topic_tail, "_CHECK_S", 0.5)
    monkeypatch.setattr(tail_reader, "_MOST_CALLS", 1)
    monkeypatch.setattr(tail_reader, "AT_ONCE", 1)
    servers, topic = streams.bootstrap_servers, streams.topics.shape_changes
    reading = read(servers, topic, busy_s=0.05)
    await reading.until_read()
    written = 0
    while not reading.reader.outages:
        produce(servers, topic, *range(written + 1, written + 5_001))
        written += 5_000
        await asyncio.sleep(0)
    # By the log, because it may be at the end already.
    await until(lambda: "is read too slowly" in caplog.text, "the reason")
    await until(lambda: reading.reader.problem is None, "the topic is read again")
    reading.busy_s = 0.0
    produce(servers, topic, 1_000_000)
    await reading.until_has(1_000_000)


async def test_no_read_acl(
    secured_broker: SecuredBroker,
    topic_name: Callable[[str], str],
    read: Read,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server goes on without the tail, and says what to allow; with that, the tail is read."""
    topic = topic_name("shape_changes")
    create_topic(secured_broker.open_servers, topic, {})
    access = create_access(secured_broker, "PLAIN", [("DESCRIBE", topic)])
    reading = read(access.servers, topic, access.options)
    reading.reader.start()
    remedy = f"; allow this user READ on topic {topic}"
    await until(lambda: remedy in (reading.reader.problem or ""), "the reader is refused")
    # Only a record, or the end of the topic, tells that it may be read.
    await asyncio.sleep(3)
    assert remedy in (reading.reader.problem or "")
    assert reading.reader.outages == 1
    (line,) = [each for each in caplog.messages if each.startswith("tail cannot be read ")]
    assert line.endswith(remedy)
    secured_broker.allow(access.principal, acls_of("serve", {"shape_changes": topic}))
    await until(lambda: reading.reader.problem is None, "the topic is read")
    produce(secured_broker.open_servers, topic, 1)
    await reading.until_has(1)


async def test_user_with_no_acl_at_all(
    secured_broker: SecuredBroker, topic_name: Callable[[str], str], read: Read
) -> None:
    """To whom the brokers do not say whether there is such a topic."""
    topic = topic_name("shape_changes")
    create_topic(secured_broker.open_servers, topic, {})
    access = create_access(secured_broker, "PLAIN")
    reading = read(access.servers, topic, access.options)
    reading.reader.start()
    remedy = f"; allow this user READ on topic {topic}"
    await until(lambda: remedy in (reading.reader.problem or ""), "the reader is refused")


async def test_brokers_out_of_reach(
    topic_name: Callable[[str], str], read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names them, and the topic."""
    topic = topic_name("shape_changes")
    reading = read("127.0.0.1:9", topic)
    reading.reader.start()
    await until(lambda: reading.reader.outages, "there is no broker")
    assert f"tail cannot be read reason=topic {topic} at 127.0.0.1:9 cannot be read: " in caplog.text


async def test_wrong_password(secured_broker: SecuredBroker, topic_name: Callable[[str], str], read: Read) -> None:
    """As any outage, with the brokers' reason and without the password."""
    access = create_access(secured_broker, "PLAIN")
    reading = read(access.servers, topic_name("shape_changes"), access.options | {"sasl.password": "hunter2hunter2"})
    reading.reader.start()
    await until(lambda: "Authentication failed" in (reading.reader.problem or ""), "the reader is refused")
    assert "hunter2" not in str(reading.reader.problem)


def test_options_that_are_wrong_end_the_start(read: Read, tmp_path: Path) -> None:
    """As in every other program; not an outage, because no retry helps."""
    options = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "none.pem")}
    with pytest.raises(ConfigError, match="Kafka's client rejects its options"):
        read("127.0.0.1:9", "shape_changes", options)
