"""``GroupOffsets``: where topics begin, what consumer groups have committed in them, and where they end."""

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
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

_NO_GROUP: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART})
_NOT_NOW: Final = NO_LEADER | {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
"""What is about one topic or group, and may be over at the next look."""
_T = TypeVar("_T")
Place = tuple[str, int]
"""A topic and the number of a partition."""


class SampledOffsets(NamedTuple):
    """``committed`` has the groups that have committed anything; ``begins`` were read after it, and ``ends`` last.

    ``unanswered``: why a topic or a group could not be asked, by ``topic NAME`` or ``group NAME``.
    """

    begins: dict[Place, int]
    committed: dict[str, dict[Place, int]]
    ends: dict[Place, int]
    unanswered: Mapping[str, str] = MappingProxyType({})


class GroupOffsets:
    """Reads them with one client, whatever the number of topics and groups.

    Raises:
        ConfigError: the client rejects its options.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._servers, self._timeout_s = config.bootstrap_servers, config.retry_timeout_ms / 1000
        self._errors = ClientErrors(config.options)
        self._client = admin_client(config, self._errors)
        self._unanswered: dict[str, str] = {}

    def sample(self, places: Mapping[str, Collection[Place]]) -> SampledOffsets:
        """The offsets of these partitions that there are, by the groups that read them.

        Offsets that a group commits in a transaction count once that is committed.

        Raises:
            TopicLostError: this user may not ask about a topic.
            BrokerError: the brokers do not answer, or refuse something else.
        """
        self._unanswered = {}
        everywhere = sorted({place for read in places.values() for place in read})
        committed = {group: self._committed(group, sorted(read)) for group, read in places.items()}
        begins = self._offsets(everywhere, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        ends = self._offsets(everywhere, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return SampledOffsets(begins, committed, ends, self._unanswered)

    def _offsets(self, places: Collection[Place], spec: OffsetSpec) -> dict[Place, int]:
        if not places:
            return {}
        asked = {TopicPartition(*place): spec for place in places}
        futures = self._client.list_offsets(asked, request_timeout=self._timeout_s)
        found: dict[Place, int] = {}
        for of, future in futures.items():
            with suppress(_UnknownError):
                found[of.topic, of.partition] = self._answer(future, "topic", of.topic).offset
        return found

    def _committed(self, group: str, places: Collection[Place]) -> dict[Place, int]:
        request = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places])
        (future,) = self._client.list_consumer_group_offsets([request], request_timeout=self._timeout_s).values()
        try:
            found = self._answer(future, "group", group).topic_partitions
        except _UnknownError:
            return {}
        return {(each.topic, each.partition): each.offset for each in found if each.error is None and each.offset >= 0}

    def _answer(self, future: "Future[_T]", kind: str, name: str) -> _T:
        try:
            return future.result()
        except KafkaException as exception:
            error, subject = kafka_error(exception), f"{kind} {name}"
            reason = f"{self._errors.masked(error)}{missing_acl(error, 'DESCRIBE', subject)}"
            message = f"the offsets of {subject} at {self._servers} cannot be read: {reason}"
            if kind == "topic" and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise TopicLostError(message, name) from exception
            if error.code() in _NOT_NOW:
                self._unanswered[subject] = message
                raise _UnknownError(message) from exception
            raise (_UnknownError if error.code() in _NO_GROUP else BrokerError)(message) from exception


class _UnknownError(BrokerError):
    """There is no such group or topic, or nothing is known of it now."""
