"""In which order the offsets of a topic and its groups are read."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stubs do not export it

from flushtracker.events.topic_rules import Topics
from flushtracker.kafka import group_offsets
from flushtracker.kafka.group_offsets import GroupOffsets, SampledOffsets
from flushtracker.kafka.kafka_config import KafkaConfig

_CONFIG = KafkaConfig("kafka:9092", Topics("fragments", "flushes", "shapes", "shape_changes"))


def _done(answer: object) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
    return future


class _Client:
    """Retention deletes four records when the first group is asked, whose reader then continues after them."""

    def __init__(self) -> None:
        self._begin, self._end = 0, 5

    def list_consumer_group_offsets(self, requests: list[ConsumerGroupTopicPartitions], request_timeout: float) -> Any:  # noqa: ARG002
        self._begin = 4
        (request,) = requests
        found = [SimpleNamespace(topic="t", partition=0, offset=5, error=None)]
        return {request.group_id: _done(SimpleNamespace(topic_partitions=found))}

    def list_offsets(self, asked: dict[TopicPartition, OffsetSpec], request_timeout: float) -> Any:  # noqa: ARG002
        earliest = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
        found, self._end = {}, self._end + 1
        for place, spec in asked.items():
            found[place] = _done(SimpleNamespace(offset=self._begin if spec._value == earliest else self._end))
        return found


def test_what_was_deleted_before_a_group_has_committed_is_seen_with_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginnings were read first: the deleted records then counted as read."""
    monkeypatch.setattr(group_offsets, "AdminClient", lambda _: _Client())
    assert GroupOffsets(_CONFIG).sample({"a": [("t", 0)]}) == SampledOffsets(
        begins={("t", 0): 4}, committed={"a": {("t", 0): 5}}, ends={("t", 0): 7}
    )
