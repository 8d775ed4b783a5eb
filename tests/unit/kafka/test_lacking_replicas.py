"""What is said of a partition that lacks replicas, to a client that may read its topic's configuration or not."""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # its stubs do not export it

from flushtracker.events.topic_rules import Topics
from flushtracker.kafka import topic_admin
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_admin import TopicAdmin

_CONFIG = KafkaConfig("kafka:9092", Topics("fragments", "flushes", "shapes", "shape_changes"))


def _done(answer: object) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


class _Client:
    """A client of topics with one partition, of which ``in_sync`` of three replicas are, and ``least`` must be.

    Without ``least`` it may not read the topics' configuration.
    """

    def __init__(self, in_sync: int, least: str | None) -> None:
        self._partition = SimpleNamespace(id=0, leader=1, isr=[1, 2, 3][:in_sync], replicas=[1, 2, 3])
        self._config: object = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        if least is not None:
            self._config = {"": SimpleNamespace(name="min.insync.replicas", value=least)}

    def describe_topics(self, _topics: TopicCollection, request_timeout: float) -> Any:  # noqa: ARG002
        return {"flushes": _done(SimpleNamespace(partitions=[self._partition]))}

    def describe_configs(self, resources: Iterable[ConfigResource], request_timeout: float) -> Any:  # noqa: ARG002
        return {resource: _done(self._config) for resource in resources}


@pytest.mark.parametrize(
    ("in_sync", "least", "expected"),
    [
        (1, "2", ", but min.insync.replicas is 2"),
        (2, "2", None),
        (1, None, " of 3, and may need more"),
        (3, None, None),
    ],
)
def test_writer_without_describe_configs_learns_why_nothing_is_confirmed(
    monkeypatch: pytest.MonkeyPatch, in_sync: int, least: str | None, expected: str | None
) -> None:
    """The documented ACL of `write` on `flushes` is WRITE alone, with which it sees the replicas."""
    monkeypatch.setattr(topic_admin, "admin_client", lambda *_: _Client(in_sync, least))
    found = TopicAdmin(_CONFIG).lacking_replicas(["flushes"])
    begin = f"partition 0 of topic flushes has {in_sync} in-sync replicas"
    assert found == (None if expected is None else f"{begin}{expected}; start the brokers that have the others")


def test_a_partition_without_a_leader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica that was the last one in sync still counts as that."""
    client = _Client(1, "1")
    client._partition.leader = None
    monkeypatch.setattr(topic_admin, "admin_client", lambda *_: client)
    found = TopicAdmin(_CONFIG).lacking_replicas(["flushes"])
    assert found == "partition 0 of topic flushes has no leader; start the brokers that have it"
