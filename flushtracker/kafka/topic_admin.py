"""``TopicAdmin``: checks the topics of the streams, reports what is wrong with them, and creates missing ones.

It never alters a topic, and deletes one only for the caller that created it.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs do not export these
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from flushtracker.errors import BrokerError, ConfigError, TopicLostError
from flushtracker.events.topic_rules import TopicFacts, topic_faults, topic_settings
from flushtracker.kafka.broker_check import log_waiting
from flushtracker.kafka.client import (
    NO_LEADER,
    ClientErrors,
    admin_client,
    kafka_error,
    missing_acl,
)
from flushtracker.kafka.kafka_config import KafkaConfig

_LEAST_TIMEOUT_S: Final = 1.0
_UNAVAILABLE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_PAUSE_S: Final = 0.1
_REFUSED_AFTER_S: Final = 1.0
"""Long enough for another broker of the list to respond."""
_LOG_WAITING_AFTER_S: Final = 4.0
"""Soon enough for an operator who has just started the program; not used if the error itself follows soon."""

_OF_TOPIC: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_CONFIG,
        KafkaError.POLICY_VIOLATION,
    }
)
"""What is about one topic, and no retry changes."""

_T = TypeVar("_T")
_Lost = dict[str, TopicLostError]


class TopicAdmin:
    """The topics of ``config``; ``timeout_s`` is the timeout of each request, by default ``config.retry_timeout_ms``.

    Raises:
        ConfigError: the client rejects its options.
    """

    def __init__(self, config: KafkaConfig, *, timeout_s: float | None = None) -> None:
        self._config = config
        self._timeout_s = max(config.retry_timeout_ms / 1000 if timeout_s is None else timeout_s, _LEAST_TIMEOUT_S)
        self._errors = ClientErrors(config.options)
        self._is_waiting = False
        self._client = admin_client(config, self._errors)

    def facts(self, roles: Iterable[str] | None = None) -> dict[str, TopicFacts | None]:
        """The brokers' description of the topic of each role, of all without ``roles``; ``None`` if it does not exist.

        Raises:
            BrokerError: the brokers do not respond, or refuse the request.
        """
        by_role = self._config.topics.by_role()
        names = by_role if roles is None else {role: by_role[role] for role in roles}
        found = self.facts_of(names.values())
        return {role: found[name] for role, name in names.items()}

    def facts_of(self, names: Iterable[str], lost: _Lost | None = None) -> dict[str, TopicFacts | None]:
        """Likewise, of any topics by their names; raises ``BrokerError``, unless it is about a topic, into ``lost``."""
        described = self._client.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout_s)
        self._wait(described.values())
        known = {name: future for name, future in described.items() if not _is_unknown_topic(future)}
        found = self._answers(known, "described", "READ, WRITE or DESCRIBE", lost)
        configs = self._configs(found, lost)
        facts: dict[str, TopicFacts | None] = dict.fromkeys(described.keys() - known.keys())
        for name, config in configs.items():
            facts[name] = TopicFacts(name, len(found[name].partitions), config, str(found[name].topic_id))
        return facts

    def setting(self, topic: str, name: str) -> str:
        """One setting of any existing topic; raises ``BrokerError``."""
        return self._configs([topic])[topic].get(name, "unknown")

    def lacking_replicas(self, topics: Collection[str]) -> str | None:
        """The first partition of these existing topics that accepts no records for lack of a leader, or of replicas.

        Whoever may not read a topic's configuration cannot know how many it needs: the first one that lacks any.

        Raises:
            BrokerError: the brokers do not answer, or refuse the request.
        """
        described = self._client.describe_topics(TopicCollection(list(topics)), request_timeout=self._timeout_s)
        for name, found in self._answers(described, "described", "READ, WRITE or DESCRIBE").items():
            least = self._least_replicas(name)
            for partition in found.partitions:
                if partition.leader is None:
                    return f"partition {partition.id} of topic {name} has no leader; start the brokers that have it"
                replicas, most = len(partition.isr), len(partition.replicas)
                # A topic with fewer replicas needs only those.
                if replicas < min(most if least is None else least, most):
                    has = f"partition {partition.id} of topic {name} has {replicas}"
                    if least is None:
                        fault = f"{has} in-sync replicas of {most}, and may need more"
                    else:
                        fault = f"{has} in-sync replicas, but min.insync.replicas is {least}"
                    return f"{fault}; start the brokers that have the others"
        return None

    def _least_replicas(self, topic: str) -> int | None:
        try:
            least = self.setting(topic, "min.insync.replicas")
        except BrokerError:  # This client may not see it.
            return None
        return int(least) if least.isdecimal() else None

    def _configs(self, names: Iterable[str], lost: _Lost | None = None) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        described = self._client.describe_configs(resources, request_timeout=self._timeout_s)
        futures = {resource.name: future for resource, future in described.items()}
        found = self._answers(futures, "described with its configuration", "DESCRIBE_CONFIGS", lost)
        return {
            name: {entry.name: entry.value for entry in entries.values() if entry.value is not None}
            for name, entries in found.items()
        }

    def create(self, roles: Iterable[str]) -> None:
        """Create the topics of these roles with the required settings; all exist when this returns.

        Raises:
            BrokerError: one cannot be created, or exists already.
        """
        by_role, partitions = self._config.topics.by_role(), self._config.partitions
        self.create_as({by_role[role]: (role, partitions) for role in roles})

    def create_as(
        self, roles: Mapping[str, tuple[str, int]], lost: _Lost | None = None
    ) -> dict[str, TopicFacts | None]:
        """Create topics by their names, each with the settings of a role, and this many partitions.

        Returns, and raises, as :meth:`facts_of`; a topic is an error if it cannot be created, or exists already.
        """
        config = self._config
        topics = [
            NewTopic(
                name,
                num_partitions=partitions,
                replication_factor=config.replication_factor,
                config=topic_settings(
                    role,
                    retention_ms=config.retention_ms,
                    max_event_bytes=config.max_event_bytes,
                    replication_factor=config.replication_factor,
                ),
            )
            for name, (role, partitions) in roles.items()
        ]
        created = self._client.create_topics(topics, request_timeout=self._timeout_s)
        names = self._answers(created, "created", "CREATE", lost)
        # A broker may list a new topic some time after the controller has created it.
        deadline = time.monotonic() + self._timeout_s
        while None in (facts := self.facts_of(names, lost)).values():
            if time.monotonic() > deadline:
                raise BrokerError(
                    f"Kafka at {config.bootstrap_servers} has created the topics but does not list them after "
                    f"{self._timeout_s:g} s; check the controller's log"
                )
            time.sleep(_PAUSE_S)
        return facts

    def delete(self, roles: Iterable[str]) -> None:
        """Delete the topics of these roles, which the caller has created.

        Raises:
            BrokerError: one cannot be deleted, or does not exist.
        """
        names = [self._config.topics.by_role()[role] for role in roles]
        deleted = self._client.delete_topics(names, request_timeout=self._timeout_s)
        self._answers(deleted, "deleted", "DELETE")

    def record_count(self, role: str) -> int:
        """The approximate number of records in the topic of a role: compaction leaves Kafka offsets unused.

        Raises:
            BrokerError: the brokers do not answer, or there is no such topic.
        """
        name = self._config.topics.by_role()[role]
        facts = self.facts([role])[role]
        if facts is None:
            raise BrokerError(f"there is no topic {name}")
        partitions = [TopicPartition(name, partition) for partition in range(facts.partitions)]
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._offset_sum(partitions, _LATEST) - self._offset_sum(partitions, _EARLIEST)
            except _NoLeaderError:
                # Normal for a moment after the topic was created or its broker returned.
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _offset_sum(self, partitions: list[TopicPartition], spec: OffsetSpec) -> int:
        futures = self._client.list_offsets(dict.fromkeys(partitions, spec), request_timeout=self._timeout_s)
        self._wait(futures.values())
        topic = partitions[0].topic
        return sum(self._answer(future, topic, "read", "READ, WRITE or DESCRIBE").offset for future in futures.values())

    def _wait(self, futures: "Iterable[Future[_T]]") -> None:
        """Wait for all futures. If every broker refuses the client, no response will arrive, so raise early."""
        started = time.monotonic()
        while wait(futures, _PAUSE_S).not_done:
            self._client.poll(0)
            waited_s = time.monotonic() - started
            if self._errors.is_refusal and waited_s > _REFUSED_AFTER_S:
                raise self._errors.refusal(self._config.bootstrap_servers)
            if not self._is_waiting and waited_s > _LOG_WAITING_AFTER_S < self._timeout_s / 2:
                self._is_waiting = True
                log_waiting(self._config.bootstrap_servers, self._errors.last, self._timeout_s - waited_s)

    def _answers(
        self, futures: "Mapping[str, Future[_T]]", done: str, operation: str, lost: _Lost | None = None
    ) -> dict[str, _T]:
        """The results by topic, once all are there; without ``lost`` raises also what is about one topic."""
        self._wait(futures.values())
        found = {}
        for topic, future in futures.items():
            with _noting(lost):
                found[topic] = self._answer(future, topic, done, operation)
        return found

    def _answer(self, future: "Future[_T]", topic: str, done: str, operation: str) -> _T:
        """The future's result; on failure, the topic could not be ``done``, which needs an ACL for ``operation``."""
        try:
            return future.result()
        except KafkaException as exception:
            error = kafka_error(exception)
            if error.code() in _UNAVAILABLE:
                self._client.poll(0)
                raise BrokerError(
                    f"Kafka at {self._config.bootstrap_servers} does not answer within {self._timeout_s:g} s: "
                    f"{self._errors.last}"
                ) from exception
            reason = f"{self._errors.masked(error)}{missing_acl(error, operation, f'topic {topic}')}"
            if error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
                reason = f"{reason.rstrip('.')}; start all brokers, or set kafka.replication_factor to their number"
            message = f"topic {topic} cannot be {done}: {reason}"
            if error.code() in _OF_TOPIC:
                raise TopicLostError(message, topic) from exception
            raise (_NoLeaderError if error.code() in NO_LEADER else BrokerError)(message) from exception


class _NoLeaderError(BrokerError):
    """A partition has no leader at the moment; one will be elected soon."""


@contextmanager
def _noting(lost: _Lost | None) -> Iterator[None]:
    try:
        yield
    except TopicLostError as error:
        if lost is None:
            raise
        lost[error.topic] = error


def _is_unknown_topic(future: "Future[_T]") -> bool:
    error = future.exception()
    return isinstance(error, KafkaException) and kafka_error(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def all_topic_faults(config: KafkaConfig, facts: Mapping[str, TopicFacts | None]) -> list[str]:
    """Everything wrong with the topics of these roles, including missing ones; one sentence each."""
    faults = []
    for role, topic in facts.items():
        if topic is None:
            faults.append(f"there is no topic {config.topics.by_role()[role]} for {role}")
        else:
            faults += topic_faults(
                role, topic, retention_ms=config.retention_ms, max_event_bytes=config.max_event_bytes
            )
    return faults


def require_topics(config: KafkaConfig, roles: Iterable[str]) -> None:
    """Check the topics before anything is published to them.

    Raises:
        ConfigError: some are missing or wrong; the message lists every fault.
        BrokerError: the brokers do not answer.
    """
    faults = all_topic_faults(config, TopicAdmin(config).facts(roles))
    if faults:
        raise ConfigError(f"{'; '.join(faults)}. `flushtracker topics` checks and creates topics")
