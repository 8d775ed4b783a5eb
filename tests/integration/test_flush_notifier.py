"""``FlushNotifier`` on a real broker: what a writer of one's own publishes through it."""

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from flushtracker import FlushNotifier, LogOffset
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.records import record_of
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FlushNotification
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.shapes.definition import ShapeDefinition
from tests.support.brokers import Broker
from tests.support.faulty_writers import WRITER
from tests.support.kafka_streams import config_file, created_streams, records, unreachable
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SOURCE = "7301/1/shapes"


@pytest.fixture
def config(broker: Broker, topic_name: Callable[[str], str]) -> KafkaConfig:
    """Four streams with several partitions, so that the partitioner matters."""
    return created_streams(broker.bootstrap_servers, topic_name, partitions=7)


def published(config: KafkaConfig) -> list[tuple[str, LogOffset]]:
    """Shape and offset of each notification; all of one shape are in one partition, in order."""
    found = records(config.bootstrap_servers, config.topics.flushes)
    events = [FlushNotification.from_json(value) for pairs in found.values() for _, value in pairs]
    assert all(event.type == "flushed" for event in events)
    return [(event.shape_id, event.offset) for event in events]


def test_many_flushes_of_a_shape_become_the_last(config: KafkaConfig) -> None:
    """One notification for each shape between two publications, and the offset never goes back."""
    with FlushNotifier(config, writer="log") as notifier:
        for op in (0, 2, 8, 4):
            notifier.flushed(SOURCE, "users", LogOffset(100, op))
        notifier.flushed(SOURCE, "orders", LogOffset(50, 0))
        notifier.flush()
        assert sorted(published(config)) == [("orders", LogOffset(50, 0)), ("users", LogOffset(100, 8))]
        notifier.flush()
        assert len(published(config)) == 2
        notifier.flushed(SOURCE, "users", LogOffset(90, 0))
    assert sorted(published(config))[1:] == [("users", LogOffset(100, 8))] * 2


def test_the_start_says_again_what_is_durable(config: KafkaConfig, tmp_path: Path) -> None:
    """It is confirmed when start returns; the configuration may be a file."""
    durable = {(SOURCE, f"shape-{number}"): LogOffset.last_of(number) for number in range(50)}
    with FlushNotifier(config_file(config, tmp_path / "kafka.yaml"), writer="log") as notifier:
        notifier.start(durable)
        assert {(SOURCE, shape_id): offset for shape_id, offset in published(config)} == durable


def test_keys_and_partitions_are_those_of_captures_publisher(config: KafkaConfig) -> None:
    """In the compacted topic a notification replaces the shape's one before, whoever published that."""
    shapes = ["users", 'q"}x{', "naïve🙂", *(f"shape-{number}" for number in range(40))]
    publisher = KafkaPublisher(config)
    for shape_id in shapes:
        _, key, value = record_of(FlushNotification(SOURCE, "flushed", shape_id, LogOffset(1, 0), "log"))
        publisher.publish(config.topics.flushes, key, value)
    publisher.flush(60)
    with FlushNotifier(config, writer="log") as notifier:
        notifier.start({(SOURCE, shape_id): LogOffset(2, 0) for shape_id in shapes})
    by_key: dict[str, list[tuple[int, int]]] = {}
    for partition, pairs in records(config.bootstrap_servers, config.topics.flushes).items():
        for key, value in pairs:
            by_key.setdefault(key, []).append((partition, json.loads(value)["offset"]["tx_offset"]))
    assert set(by_key) == {
        json.dumps([SOURCE, name, "flushed", "log"], separators=(",", ":"), ensure_ascii=False) for name in shapes
    }
    for (first, first_lsn), (second, second_lsn) in by_key.values():
        assert (first, first_lsn, second_lsn) == (second, 1, 2)


def test_publish_does_not_wait_and_the_end_of_the_block_does(config: KafkaConfig) -> None:
    """A writer may go on while notifications are under way."""
    with FlushNotifier(config, writer="log") as notifier:
        for number in range(2_000):
            notifier.flushed(SOURCE, "users", LogOffset(number, 0))
            notifier.publish()
    assert published(config) == [("users", LogOffset(number, 0)) for number in range(2_000)]


def test_an_exception_leaves_the_block_without_waiting(config: KafkaConfig) -> None:
    """What was not published is not said: the exception may mean that it is not durable."""

    def write() -> None:
        with FlushNotifier(config, writer="log") as notifier:
            notifier.flushed(SOURCE, "users", LogOffset(1, 0))
            raise KeyError("storage")

    with pytest.raises(KeyError):
        write()
    assert published(config) == []


@pytest.mark.parametrize(
    ("source", "shape_id", "offset"),
    [
        ("", "users", LogOffset(1, 0)),
        (SOURCE, "a\nb", LogOffset(1, 0)),
        (SOURCE, "users", LogOffset.before_all()),
    ],
)
def test_what_the_tracker_could_not_read_is_refused(
    config: KafkaConfig, source: str, shape_id: str, offset: LogOffset
) -> None:
    """Its readers would put the notification into the dead-letter table, and the shape would seem to stall."""
    notifier = FlushNotifier(config, writer="log")
    with pytest.raises(ValueError, match=r"cannot be notified: no such shape or offset$"):
        notifier.flushed(source, shape_id, offset)
    notifier.close()


def test_the_example_of_the_page_for_writers_runs(
    config: KafkaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says the start again, and then what became durable."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "writers.md").read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "FlushNotifier" in block]
    config_file(config, tmp_path / "flushtracker.yaml")
    monkeypatch.chdir(tmp_path)
    exec(block, {})  # noqa: S102  our own page
    assert published(config) == [("users", LogOffset(100, 8)), ("users", LogOffset.last_of(200))]


def test_the_example_writer_reads_past_a_tombstone_in_the_registry(config: KafkaConfig, tmp_path: Path) -> None:
    """Somebody has deleted an entry, as a damaged one. The writer would end at each start until it is compacted."""
    definition = ShapeDefinition("users", ("public", "users"), incarnation=2, writer="own")
    entry = record_of(ShapeEntry(SOURCE, definition, 16385, LogOffset(100, 4)))
    producer = Producer({"bootstrap.servers": config.bootstrap_servers})
    for value in (None, entry.value):
        producer.produce(config.topics.shapes, value, entry.key, 0)
    assert producer.flush(60) == 0
    database, log = tmp_path / "shapes.db", tmp_path / "writer.log"
    command = [sys.executable, str(WRITER), str(config_file(config, tmp_path / "kafka.yaml")), str(database)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:

        def incarnations() -> list[tuple[int]]:
            assert process.poll() is None, log.read_text()
            with suppress(sqlite3.OperationalError), closing(sqlite3.connect(database)) as connection:
                return connection.execute("SELECT incarnation FROM snapshots").fetchall()
            return []  # The table is not there yet.

        try:
            assert wait_until(incarnations, "the writer has read the entry", 120) == [(2,)]
        finally:
            process.kill()


def test_unavailable_brokers_and_a_bad_file_are_errors(config: KafkaConfig, tmp_path: Path) -> None:
    """Nothing is said to be confirmed that is not."""
    notifier = FlushNotifier(unreachable(config, retry_timeout_ms=1_000), writer="log")
    with pytest.raises(BrokerError, match=r"has not confirmed 1 records for 1 s"):
        notifier.start({(SOURCE, "users"): LogOffset(1, 0)})
    notifier.close()
    with pytest.raises(ConfigError):
        FlushNotifier(tmp_path / "missing.yaml", writer="log")
