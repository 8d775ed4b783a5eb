"""In which order the offsets of a topic and its groups are read."""

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stubs do not export it

from flushtracker.events.topic_rules import Topics
from flushtracker.kafka import group_offsets
from flushtracker.kafka.group_offsets import GroupOffsets, SampledOffsets, Subject
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
    """Retention deletes four records when the first group is asked, whose reader then continues after them.

    ``errors``: the answers about a topic or a group, by its name; no leader has answered with ``OFFSET_INVALID``.
    """

    def __init__(self, errors: Mapping[str, int] | None = None) -> None:
        self._begin, self._end = 0, 5
        self._errors = {
            name: SimpleNamespace(offset=code) if code == OFFSET_INVALID else KafkaException(KafkaError(code))
            for name, code in (errors or {}).items()
        }

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> Any:  # noqa: ARG002
        return {group: _done(self._errors.get(group, None)) for group in groups}

    def poll(self, _timeout_s: float) -> None:
        pass

    def committed(self, _places: list[TopicPartition], timeout: float) -> Any:
        assert timeout <= 5, "all shapes wait for a coordinator that has gone"
        self._begin = 4
        return [SimpleNamespace(topic="t", partition=0, offset=5, error=None)]

    def list_offsets(self, asked: dict[TopicPartition, OffsetSpec], request_timeout: float) -> Any:
        assert request_timeout <= 5, "all shapes wait for a leader that has gone"
        earliest = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
        found, self._end = {}, self._end + 1
        for place, spec in asked.items():
            answer = SimpleNamespace(offset=self._begin if spec._value == earliest else self._end)
            found[place] = _done(self._errors.get(place.topic, answer))
        return found


def use(monkeypatch: pytest.MonkeyPatch, client: _Client) -> None:
    monkeypatch.setattr(group_offsets, "admin_client", lambda *_: client)
    monkeypatch.setattr(group_offsets, "new_consumer", lambda *_, **__: client)


def test_what_was_deleted_before_a_group_has_committed_is_seen_with_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginnings were read first: the deleted records then counted as read."""
    use(monkeypatch, _Client())
    assert GroupOffsets(_CONFIG).sample({"a": [("t", 0)]}) == SampledOffsets(
        begins={("t", 0): 4}, committed={"a": {("t", 0): 5}}, ends={("t", 0): 7}
    )


@pytest.mark.parametrize(
    ("of", "code"),
    [
        (("topic", "u"), KafkaError.LEADER_NOT_AVAILABLE),
        (("topic", "u"), OFFSET_INVALID),
        (("topic", "u"), KafkaError._TIMED_OUT),
        (("group", "b"), KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (("group", "b"), KafkaError.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_a_topic_or_a_group_that_cannot_be_asked_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, of: Subject, code: int
) -> None:
    """The program ended, at each start, before it had fed any shape."""
    use(monkeypatch, _Client({of[1]: code}))
    found = GroupOffsets(_CONFIG).sample({"a": [("t", 0)], "b": [("u", 0)]})
    assert found.unanswered.keys() == {of}
    assert " ".join(of) in found.unanswered[of]
    assert found.begins.get(("t", 0)) == 4
    assert (("u", 0) in found.begins) == (of != ("topic", "u"))
    assert found.committed["b"] == ({} if of == ("group", "b") else {("t", 0): 5})
