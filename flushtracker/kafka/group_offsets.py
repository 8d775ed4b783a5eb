"""``GroupOffsets``: where topics begin, what consumer groups have committed in them, and where they end."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stubs do not export it

from flushtracker.errors import BrokerError, TopicLostError
from flushtracker.kafka.client import (
    NO_LEADER,
    ClientErrors,
    admin_client,
    kafka_error,
    missing_acl,
)
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import new_consumer

_UNKNOWN: Final = frozenset(
    {
        KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        # librdkafka's answer for all partitions if none has a leader, or is there.
        KafkaError._NOENT,
    }
)
_NOT_NOW: Final = NO_LEADER | {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
"""What is about one topic or group, and may be over at the next look."""
_NO_ANSWER: Final = _NOT_NOW | {KafkaError._TIMED_OUT}
_LOOK_S: Final = 5.0
"""The longest wait for an answer of a leader or coordinator, which may be gone: all shapes wait meanwhile."""
_T = TypeVar("_T")
Place = tuple[str, int]
"""A topic and the number of a partition."""
Subject = tuple[Literal["topic", "group"], str]


class SampledOffsets(NamedTuple):
    """``committed`` has the groups that have committed anything; ``begins`` were read after it, and ``ends`` last.

    ``unanswered``: why a topic or a group could not be asked.
    """

    begins: dict[Place, int]
    committed: dict[str, dict[Place, int]]
    ends: dict[Place, int]
    unanswered: Mapping[Subject, str] = MappingProxyType({})


class GroupOffsets:
    """Reads them with one client, and one for each group.

    A group's commits are read by a consumer that never joins it: an ``AdminClient`` that is answered by a broker which
    is not the group's coordinator any more ends the process (https://github.com/confluentinc/librdkafka/issues/5040).

    Raises:
        ConfigError: the client rejects its options.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._servers, self._timeout_s = config.bootstrap_servers, config.retry_timeout_ms / 1000
        self._config, self._errors = config, ClientErrors(config.options)
        self._client = admin_client(config, self._errors)
        self._consumers: dict[str, Consumer] = {}
        self._unanswered: dict[Subject, str] = {}

    def sample(self, places: Mapping[str, Collection[Place]]) -> SampledOffsets:
        """The offsets of these partitions that there are, by the groups that read them.

        Offsets that a group commits in a transaction count once that is committed.

        Raises:
            TopicLostError: this user may not ask about a topic.
            BrokerError: the brokers do not answer, or refuse something else.
        """
        self._unanswered = {}
        everywhere = sorted({place for read in places.values() for place in read})
        for group in self._consumers.keys() - places.keys():
            self._consumers.pop(group).close()
        committed = {group: self._committed(group, sorted(read)) for group, read in places.items()}
        begins = self._offsets(everywhere, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(everywhere, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return SampledOffsets(begins, committed, ends, self._unanswered)

    def _offsets(self, places: Collection[Place], spec: OffsetSpec) -> dict[Place, int]:
        if not places:
            return {}
        asked = {TopicPartition(*place): spec for place in places}
        futures = self._client.list_offsets(asked, request_timeout=min(self._timeout_s, _LOOK_S))
        found: dict[Place, int] = {}
        for of, future in futures.items():
            with suppress(_UnknownError):
                offset = self._answer(future.result, ("topic", of.topic), _NO_ANSWER).offset
                if offset < 0:
                    self._unanswered["topic", of.topic] = (
                        f"the leader of a partition of topic {of.topic} does not answer"
                    )
                else:
                    found[of.topic, of.partition] = offset
        if not found:
            self._note_leaderless({topic for topic, _ in places})
        return found

    def _note_leaderless(self, topics: Collection[str]) -> None:
        # A client that has known the leader may keep asking it after it is gone, so this is a new one.
        client = admin_client(self._config, self._errors)
        asked = TopicCollection(sorted(topics))
        described = client.describe_topics(asked, request_timeout=min(self._timeout_s, _LOOK_S))
        for topic, future in described.items():
            with suppress(_UnknownError):
                found = self._answer(future.result, ("topic", topic), _NO_ANSWER)
                if any(each.leader is None for each in found.partitions):
                    self._unanswered["topic", topic] = f"a partition of topic {topic} has no leader"

    def _committed(self, group: str, places: Collection[Place]) -> dict[Place, int]:
        subject: Subject = "group", group
        # Asked first for the reason of a failure: a consumer only times out.
        described = self._client.describe_consumer_groups([group], request_timeout=self._timeout_s)[group]
        with suppress(_UnknownError):
            self._answer(described.result, subject)
        if subject in self._unanswered:
            return {}
        if group not in self._consumers:
            own = {"group.id": group}
            self._consumers[group] = new_consumer(self._config, self._errors, own, only_committed=False)
        consumer = self._consumers[group]
        # Runs its callbacks, such as that of errors.
        consumer.poll(0)
        asked = [TopicPartition(*place) for place in places]
        timeout_s = min(self._timeout_s, _LOOK_S)
        try:
            found = self._answer(lambda: consumer.committed(asked, timeout=timeout_s), subject, _NO_ANSWER)
        except _UnknownError:
            return {}
        return {(each.topic, each.partition): each.offset for each in found if each.error is None and each.offset >= 0}

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()

    def _answer(self, result: Callable[[], _T], of: Subject, not_now: Collection[int] = _NOT_NOW) -> _T:
        try:
            return result()
        except KafkaException as exception:
            error, subject = kafka_error(exception), " ".join(of)
            reason = f"{self._errors.masked(error)}{missing_acl(error, 'DESCRIBE', subject)}"
            message = f"the offsets of {subject} at {self._servers} cannot be read: {reason}"
            if of[0] == "topic" and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise TopicLostError(message, of[1]) from exception
            if error.code() in not_now:
                self._unanswered[of] = message
                raise _UnknownError(message) from exception
            raise (_UnknownError if error.code() in _UNKNOWN else BrokerError)(message) from exception


class _UnknownError(BrokerError):
    """There is no such group or topic, or nothing is known of it now."""
