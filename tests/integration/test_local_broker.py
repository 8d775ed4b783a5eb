"""The local broker: it serves requests, keeps its data after a kill, and leaves no process running."""

import os
import socket
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from flushtracker.errors import BrokerError, ConfigError
from flushtracker.local.broker import LocalBroker
from tests.support.processes import has_ended, started_by_killed_program
from tests.support.waiting import wait_until

DEADLINE_SECONDS = 60
START_AND_WAIT = """
import sys, time
from pathlib import Path
from flushtracker.local.broker import LocalBroker
broker = LocalBroker(Path(sys.argv[1]))
broker.start()
print(broker._process.pid, flush=True)
time.sleep(600)
"""


def publish_one(servers: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "message.max.bytes": 64 << 20})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def first_value(servers: str, topic: str) -> bytes | str | None:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "unused", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None, message.error()
        return message.value()
    finally:
        consumer.close()


def test_a_killed_broker_restarts_with_its_data_on_its_port(tmp_path: Path) -> None:
    """Here by a later program, which creates it for the same folder. Topics may accept large messages."""
    value = os.urandom(20 << 20)
    with LocalBroker(tmp_path) as broker:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        new = NewTopic("large", 1, config={"max.message.bytes": str(64 << 20)})
        admin.create_topics([new])["large"].result(30)
        publish_one(servers, "large", value)
        broker.kill()

    with LocalBroker(tmp_path) as later:
        assert later.bootstrap_servers == servers
        assert first_value(servers, "large") == value


def test_a_broker_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    """However the program ended: a killed test run leaves no JVM behind."""
    pid = started_by_killed_program(START_AND_WAIT, tmp_path)
    wait_until(lambda: has_ended(pid), "the broker's end", DEADLINE_SECONDS)


def test_a_broker_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    """Here its port is in use; the failed start leaves no process, and can be repeated."""
    broker = LocalBroker(tmp_path)
    host, _, port = broker.bootstrap_servers.partition(":")
    with socket.create_server((host, int(port))), pytest.raises(BrokerError) as caught:
        broker.start()
    assert str(caught.value).startswith("the local broker exited with 1; the last lines of ")
    assert f"{host}:{port}: Address already in use" in (tmp_path / "broker.log").read_text()

    with broker:
        assert AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=30).brokers


def test_an_unusable_folder_is_reported(tmp_path: Path) -> None:
    """It is a file, or it contains another broker's configuration."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^the local broker cannot run in .*/file: .*exists"):
        LocalBroker(tmp_path / "file").start()
    (tmp_path / "server.properties").write_text("listeners=PLAINTEXT://:9092\n")
    with pytest.raises(
        ConfigError, match=r"server.properties is not a local broker's configuration; remove its folder"
    ):
        LocalBroker(tmp_path)
