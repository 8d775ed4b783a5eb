"""``KafkaAdmin``: the id of a Kafka cluster, and how its topics are configured.

It uses the JVM's Kafka client, as Spark does, so the same options and permissions apply to both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import BrokerError, ConfigError
from flushtracker.events.topic_rules import TopicFacts
from flushtracker.spark.java_errors import java_reason, java_text, root_cause
from flushtracker.spark.kafka_failures import kafka_failure, masked, option_remedy

_CLIENT: Final = "kafka."
_TIMEOUTS: Final = {"default.api.timeout.ms": "10000", "request.timeout.ms": "5000"}
_UNKNOWN: Final = "UnknownTopicOrPartitionException"
_FORBIDDEN: Final = ("TopicAuthorizationException", "ClusterAuthorizationException")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's id, which Kafka never reuses, and its facts, without a config if this client may not read it."""

    topic_id: str
    facts: TopicFacts


class KafkaAdmin:
    """Requests to the cluster of ``source``, one at a time; a context manager.

    Every call raises ``BrokerError`` if no broker responds in time, and ``ConfigError`` if one refuses.
    """

    def __init__(self, spark: SparkSession, source: KafkaTransport) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._transport = source
        properties = self._jvm.java.util.HashMap()
        options = {name[len(_CLIENT) :]: value for name, value in source.options.items() if name.startswith(_CLIENT)}
        for name, value in (_TIMEOUTS | options | {"bootstrap.servers": source.bootstrap_servers}).items():
            properties.put(name, value)
        try:
            self._client = self._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        except Py4JJavaError as error:
            found = java_reason(error)
            raise kafka_failure(java_text(error), source) or ConfigError(
                f"kafka.options: Kafka's client refuses them: {source.options.masked(found)}{option_remedy(found)}"
            ) from error

    def __enter__(self) -> "KafkaAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(self._jvm.java.time.Duration.ofSeconds(0))

    def cluster_id(self) -> str:
        return str(self._result(self._client.describeCluster().clusterId()))

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics by name; raises ``ConfigError`` if one does not exist."""
        wanted = list(names)
        futures = self._client.describeTopics(self._list(wanted)).topicNameValues()
        described = {name: self._result(futures[name], f"to describe topic {name}") for name in wanted}
        configs = self._configs(wanted)
        return {
            name: Topic(
                described[name].topicId().toString(),
                TopicFacts(name, described[name].partitions().size(), configs.get(name, {})),
            )
            for name in wanted
        }

    def begins(self, name: str, topic_id: str) -> dict[int, int]:
        """The Kafka offset below which the records of each partition were deleted; compaction does not raise it.

        Raises:
            ConfigError: as :meth:`ends`.
        """
        return self._offsets(name, topic_id, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def ends(self, name: str, topic_id: str) -> dict[int, int]:
        """The Kafka offset after the last record of each partition, including transaction markers.

        A broker that has just become a partition's leader responds only once it knows all confirmed records.

        Raises:
            ConfigError: the topic has another id, because it was deleted and created again.
        """
        return self._offsets(name, topic_id, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest())

    def stable_ends(self, name: str, topic_id: str) -> dict[int, int]:
        """The last stable offset of each partition, where a query stops: its end, unless a transaction is open.

        Raises:
            ConfigError: as :meth:`ends`.
        """
        latest = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest()
        return self._offsets(name, topic_id, latest, isolation="READ_COMMITTED")

    def open_producers(self, name: str, partition: int) -> list[str]:
        """The producers with an open transaction in a partition: id and timeout, as far as this client may see them."""
        admin = self._jvm.org.apache.kafka.clients.admin
        place = self._jvm.org.apache.kafka.common.TopicPartition(name, partition)
        states = self._result(self._client.describeProducers(self._list([place])).partitionResult(place))
        ids = {
            each.producerId() for each in states.activeProducers() if each.currentTransactionStartOffset().isPresent()
        }
        listed = self._result(self._client.listTransactions(admin.ListTransactionsOptions()).all()).toArray()
        names = {each.producerId(): each.transactionalId() for each in listed if each.producerId() in ids}
        found = self._client.describeTransactions(self._list(names.values()))
        timeouts = {each: self._result(found.description(each)).transactionTimeoutMs() for each in names.values()}
        return sorted(
            f"{names[id_]} (transaction.timeout.ms {timeouts[names[id_]]})" if id_ in names else f"producer id {id_}"
            for id_ in ids
        )

    def _offsets(self, name: str, topic_id: str, spec: Any, isolation: str = "READ_UNCOMMITTED") -> dict[int, int]:
        described = self._result(self._client.describeTopics(self._list([name])).topicNameValues()[name])
        if described.topicId().toString() != topic_id:
            raise ConfigError(f"topic {name} was created again since this job started; start the job again")
        topic_partition = self._jvm.org.apache.kafka.common.TopicPartition
        partitions = [topic_partition(name, number) for number in range(described.partitions().size())]
        wanted = self._jvm.java.util.HashMap()
        for partition in partitions:
            wanted.put(partition, spec)
        level = getattr(self._jvm.org.apache.kafka.common.IsolationLevel, isolation)
        found = self._client.listOffsets(wanted, self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level))
        request = f"to say where topic {name} begins and ends"
        return {each.partition(): self._result(found.partitionResult(each), request).offset() for each in partitions}

    def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        """Each topic's configuration; empty if this client may not read it."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource
        kind = getattr(self._jvm.org.apache.kafka.common.config, "ConfigResource$Type").TOPIC
        try:
            found = self._client.describeConfigs(self._list([resource(kind, name) for name in names])).all().get()
        except Py4JJavaError as error:
            if root_cause(error).getClass().getSimpleName() in _FORBIDDEN:
                return {}
            raise self._error(error) from error
        return {
            each.name(): {entry.name(): entry.value() for entry in found[each].entries().toArray()} for each in found
        }

    def _list(self, items: Iterable[Any]) -> Any:
        values = self._jvm.java.util.ArrayList()
        for item in items:
            values.add(item)
        return values

    def _result(self, future: Any, request: str = "the request") -> Any:
        try:
            return future.get()
        except Py4JJavaError as error:
            raise self._error(error, request) from error

    def _error(self, error: Py4JJavaError, request: str = "the request") -> BrokerError | ConfigError:
        servers = self._transport.bootstrap_servers
        if root_cause(error).getClass().getSimpleName() == _UNKNOWN:
            topics = " or no topic ".join(self._transport.streams.values())
            return ConfigError(
                f"Kafka at {servers} has no topic {topics}; create them "
                f"with `flushtracker topics --create`, or correct their names in the configuration"
            )
        return kafka_failure(java_text(error), self._transport, request) or ConfigError(
            f"Kafka at {servers} refuses {request}: {masked(java_reason(error), self._transport)}"
        )
