"""Events from Kafka topics, read by one Spark source."""

import json
import logging
from collections.abc import Mapping
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that Spark's own documentation gives it)

from flushtracker.config.streams import FLUSHES, FRAGMENTS
from flushtracker.config.transport import KafkaTransport
from flushtracker.errors import ConfigError, DecodeError, GapError
from flushtracker.events.topic_rules import topic_faults
from flushtracker.spark.java_errors import JAVA_ERRORS, java_reason
from flushtracker.spark.kafka_admin import KafkaAdmin
from flushtracker.spark.kafka_failures import masked
from flushtracker.spark.recovery_plan import PartitionPlan, RecoveryPlan

logger = logging.getLogger(__name__)

_EARLIEST: Final = -2
_REMEDY: Final = (
    "restart capture, which resends everything unconfirmed, then start this job once with --recover, which starts over "
    "from what capture sent last"
)
# This job itself retries while a broker is unavailable, and logs it; Spark would hang silently for minutes.
_DEFAULTS: Final = {
    # Without it, expired records would be a silent gap.
    "failOnDataLoss": "true",
    "kafka.default.api.timeout.ms": "15000",
    "kafka.request.timeout.ms": "10000",
    "fetchOffset.numRetries": "1",
    "kafkaConsumer.pollTimeoutMs": "30000",
    # With the client's defaults of 500 records and 1 MiB per request, reading a full topic takes twice as long. Spark
    # keeps what a poll returns for each partition, and a megabyte of compressed records may become tens of megabytes.
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": "2097152",
    "kafka.receive.buffer.bytes": "1048576",
    # Spark requests only existing records. But a client that has read the last record requests the next one at once,
    # and Spark's requests on that connection wait for the response: until a record is published, or half a second.
    "kafka.fetch.max.wait.ms": "0",
    # Without a limit the first batch is as large as the backlog. If that does not fit into memory, each retry fails.
    "maxOffsetsPerTrigger": "500000",
}

# A writer's notification counts once its transaction is committed; until then, later records of its partition do not
# count either. Recovery reads in the same way, because it must see what the stream will.
_VISIBLE: Final = {"kafka.isolation.level": "read_committed"}


class KafkaEventStreams:
    """An :class:`~flushtracker.spark.input_streams.EventStreams` of topics that exist and cannot lose records.

    Raises:
        ConfigError: a topic is missing, or configured so that records could be lost.
        BrokerError: no broker responds.
    """

    resend: ClassVar[str] = _REMEDY
    remedies: ClassVar[Mapping[str, str]] = {GapError.__name__: _REMEDY, DecodeError.__name__: _REMEDY}

    def __init__(self, spark: SparkSession, config: KafkaTransport, options: Mapping[str, str] | None = None) -> None:
        """Check the topics; ``options`` are this job's own defaults for Spark's source."""
        self._spark = spark
        self._defaults = {**_DEFAULTS, **(options or {})}
        self._config = config
        with KafkaAdmin(spark, config) as admin:
            self._cluster_id = admin.cluster_id()
            self._topics = admin.topics(config.streams.values())
        self._check()

    def _check(self) -> None:
        faults = []
        for role, topic in self._config.streams.items():
            facts = self._topics[topic].facts
            if not facts.config:
                logger.warning("topic not checked topic=%s reason=not allowed to read its configuration", facts.name)
                continue
            faults += [
                f"{facts.name}: {fault}" for fault in topic_faults(role, facts, retention_ms=self._config.retention_ms)
            ]
        if faults:
            raise ConfigError(f"a topic could lose records: {'; '.join(faults)}")

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses, for messages."""
        return self._config.bootstrap_servers

    def identity(self) -> dict[str, str]:
        """The cluster, and each topic's name and id: a topic that is deleted and created again gets a new id."""
        return {"format": self._config.format, "cluster": self._cluster_id} | {
            role: f"{topic} ({self._topics[topic].topic_id})" for role, topic in self._config.streams.items()
        }

    def topic_id(self, role: str) -> str:
        return self._topics[self._config.streams[role]].topic_id

    def read(self, starts: RecoveryPlan) -> DataFrame:
        """The topics as one stream; if the checkpoint has no Kafka offsets yet, fragments begin at ``starts``.

        Raises:
            ConfigError: Spark refuses an option.
        """
        topics = ",".join(self._config.streams.values())
        first = self._first_offsets(starts) if starts.by_partition else "earliest"
        reader = self._spark.readStream.format("kafka").options(**self._options(topics))
        reader = reader.option("startingOffsets", first)
        try:
            records = reader.load()
        except JAVA_ERRORS as error:
            reason = masked(java_reason(error), self._config)
            raise ConfigError(f"kafka.options: Spark's Kafka source refuses them: {reason}") from error
        role = F.create_map(*(F.lit(name) for pair in self._config.streams.items() for name in reversed(pair)))
        place = F.concat("topic", F.lit(" partition "), "partition", F.lit(" Kafka offset "), "offset")
        events = records.withColumn("stream", F.element_at(role, F.col("topic")))
        # A tombstone shows only by its key what was deleted.
        is_deleted_flush = F.col("value").isNull() & (F.col("stream") == FLUSHES)
        key = F.coalesce(F.try_validate_utf8(F.col("key").cast("string")), F.lit(""))
        place = F.when(is_deleted_flush, key).otherwise(place)
        if starts.by_partition:
            events = events.where((F.col("stream") != FRAGMENTS) | counts(starts, _source(F.col("value"))))
        return events.select("stream", "value", place.alias("place"))

    def fragments(self) -> DataFrame:
        """The current records of the fragments topic, as Spark's Kafka source returns them."""
        reader = self._spark.read.format("kafka").options(**self._options(self._config.streams[FRAGMENTS]))
        # Records that expire during the read do not matter: recovery needs newer ones.
        return reader.option("startingOffsets", "earliest").option("failOnDataLoss", "false").load()

    def _options(self, topics: str) -> dict[str, str]:
        own = {"kafka.bootstrap.servers": self._config.bootstrap_servers, "subscribe": topics, **_VISIBLE}
        return self._defaults | dict(self._config.options) | own

    def _first_offsets(self, starts: RecoveryPlan) -> str:
        """The value of ``startingOffsets``, which must list every partition of every topic."""
        first = {
            topic: dict.fromkeys(range(self._topics[topic].facts.partitions), _EARLIEST)
            for topic in self._config.streams.values()
        }
        fragments = first[self._config.streams[FRAGMENTS]]
        fragments |= {p: part.first for p, part in starts.by_partition.items() if p in fragments}
        return json.dumps(first)


def counts(starts: RecoveryPlan, source: Column) -> Column:
    """Whether the record ``(partition, offset)`` of a fragment of ``source`` counts; a recovery may skip it."""
    counted = F.lit(True)  # noqa: FBT003 (a literal)
    for partition, part in starts.by_partition.items():
        is_old = (F.col("partition") == partition) & (F.col("offset") < part.end)
        counted = F.when(is_old, _is_at_or_past_start(part, source)).otherwise(counted)
    return counted


def _is_at_or_past_start(part: PartitionPlan, source: Column) -> Column:
    if not part.sources:
        return F.lit(False)  # noqa: FBT003 (a literal)
    pairs = [F.lit(item) for pair in part.sources.items() for item in pair]
    start = F.try_element_at(F.create_map(*pairs), source)
    return start.isNotNull() & (F.col("offset") >= start)


def _source(value: Column) -> Column:
    """The source of a record, parsed leniently; relevant records are parsed strictly later."""
    return F.from_json(F.try_validate_utf8(value.cast("string")), "source STRING")["source"]
