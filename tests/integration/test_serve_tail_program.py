"""``flushtracker serve`` with a tail, as a process, on a real broker: clients get what the log does not have yet."""

import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from flushtracker.events.records import record_of
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.local.free_ports import free_port
from flushtracker.status.program_status import parse_status
from flushtracker.status.serve_status import ServeStatus, TailStatus
from tests.support.brokers import Broker
from tests.support.config_file import change_config
from tests.support.kafka_streams import created_streams
from tests.support.sample_registry import register, shape_entry, table_entry
from tests.support.serve_process import Process, configuration
from tests.support.shape_log_rows import append, commit, item
from tests.support.tail_reading import whole_transaction
from tests.support.tail_servers import schema_of
from tests.support.waiting import wait_until

_DEADLINE_S = 180
_NOT_READ = "tail cannot be read"


@dataclass
class TailServer:
    """The program, its status, and what capture publishes for it."""

    process: Process
    status_port: int
    streams: KafkaConfig
    schema: str

    def tail(self) -> TailStatus:
        connection = http.client.HTTPConnection("127.0.0.1", self.status_port, timeout=60)
        connection.request("GET", "/status.json")
        found = parse_status(connection.getresponse().read())
        connection.close()
        assert isinstance(found, ServeStatus)
        assert found.tail is not None
        return found.tail

    def get(self, offset: str, handle: str = "", *, live: bool = False) -> tuple[list[Any], dict[str, str]]:
        more = f"&handle={handle}&live={json.dumps(live)}" if handle else ""
        status, headers, body = self.process.get(f"/v1/shape?shape=users&offset={offset}{more}", _DEADLINE_S)
        assert status == 200, body
        return [each for each in json.loads(body) if "value" in each], headers

    def publish(self, tx: int, follows: int) -> None:
        producer = Producer({"bootstrap.servers": self.streams.bootstrap_servers, "linger.ms": 0})
        record = record_of(replace(whole_transaction(tx, follows), schema=self.schema))
        producer.produce(self.streams.topics.shape_changes, record.value, record.key)
        assert producer.flush(_DEADLINE_S) == 0


@pytest.fixture
def server(broker: Broker, topic_name: Callable[[str], str], tmp_path: Path, log: str) -> Iterator[TailServer]:
    """A server of a log with one transaction, which looks at the log every ten seconds."""
    register(log, shape_entry(), table_entry())
    append(log, [item((10, 0), "insert", '"public"."users"/"1"', {"id": "1"}), commit(10)])
    streams, port = created_streams(broker.bootstrap_servers, topic_name, partitions=2), free_port()
    path = configuration(tmp_path, log, status_port=port, poll="10 seconds", tail=True)
    prefix = streams.topics.flushes.removesuffix(".flushes")
    change_config(path, {"kafka": {"bootstrap_servers": streams.bootstrap_servers, "topic_prefix": prefix}})
    found = TailServer(Process(path), port, streams, schema_of(log, "users"))
    yield found
    found.process.process.kill()
    found.process.process.wait()


def test_server_without_its_topic_says_so_and_serves(broker: Broker, tmp_path: Path, log: str) -> None:
    """Its readiness does not depend on the tail."""
    register(log, shape_entry(), table_entry())
    append(log, [item((10, 0), "insert", '"public"."users"/"1"', {"id": "1"}), commit(10)])
    port = free_port()
    path = configuration(tmp_path, log, status_port=port, tail=True)
    change_config(path, {"kafka": {"bootstrap_servers": broker.bootstrap_servers, "topic_prefix": "no"}})
    process = Process(path)
    assert process.process.stderr is not None
    # It may come before the server listens.
    line = next((each for each in process.lines if _NOT_READ in each), "")
    while _NOT_READ not in line:
        line = process.process.stderr.readline()
        assert line
    assert f"reason=topic no.shape_changes at {broker.bootstrap_servers} cannot be read: " in line
    assert line.endswith("; create it, or correct its name\n")
    found = TailServer(process, port, KafkaConfig(broker.bootstrap_servers, Topics("", "", "", "")), "")
    assert "create it" in str(found.tail().problem)
    assert len(found.get("-1")[0]) == 1
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/readyz")
    assert connection.getresponse().status == 200
    connection.close()
    assert process.stop()[0] == 0


def test_waiting_client_gets_what_the_log_does_not_have(server: TailServer) -> None:
    """And goes on from there, until the log has it, too."""
    wait_until(lambda: server.tail().problem is None, "the tail is read", _DEADLINE_S)
    _, headers = server.get("-1")
    handle, offset = headers["electric-handle"], headers["electric-offset"]
    with ThreadPoolExecutor() as clients:
        for tx, follows in ((20, 10), (30, 20)):
            # From this request on the server reads the shape's events.
            assert server.get(offset, handle)[0] == []
            waiting = clients.submit(server.get, offset, handle, live=True)
            server.publish(tx, follows)
            rows, headers = waiting.result(_DEADLINE_S)
            assert [each["headers"]["lsn"] for each in rows] == [str(tx)]
            offset = headers["electric-offset"]
            assert offset.startswith(f"{tx}_")
    tail = server.tail()
    assert (tail.records, tail.skipped_records, tail.outages, tail.resets) == (2, 0, 0, 0)
    assert tail.memory_bytes > 0
    assert tail.lag_ms is not None
    assert server.process.stop()[0] == 0
