"""A tracking job with its own topics on a real broker."""

import logging
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs lack these exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from flushtracker.config.job_config import ROLES, JobConfig
from flushtracker.config.secret_options import SecretOptions
from flushtracker.config.transport import KafkaTransport, Transport
from flushtracker.events.records import record_of
from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.events.topic_rules import MAX_EVENT_BYTES, topic_settings
from tests.support.job_folder import JobFolder
from tests.support.waiting import wait_until

SILENT = logging.getLogger("tests.librdkafka")
SILENT.setLevel(logging.CRITICAL)
IMPATIENT: Mapping[str, str] = MappingProxyType(
    {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}
)
"""A job's options where brokers are away: Java's clients learn of that by these timeouts alone."""
_RETENTION_MS = 7 * 86_400_000


@dataclass(frozen=True)
class KafkaJob(JobFolder):
    """A :class:`JobFolder` with topics instead of directories; they are created with the object."""

    bootstrap_servers: str = ""
    partitions: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    retry_timeout_ms: int = 60_000
    producer_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.create_topics()

    def topic(self, stream: str) -> str:
        return f"{self.name}.{stream}"

    def create_topics(self, *, leaders: Mapping[str, int] | None = None, **settings: str) -> None:
        """Create both topics with the required settings; ``settings`` override those of the fragments topic.

        ``leaders``: stream → id of the broker that has its one partition; by default the cluster chooses.
        """
        topics = []
        for stream in ("fragments", "flushes"):
            config = topic_settings(stream, retention_ms=_RETENTION_MS, max_event_bytes=MAX_EVENT_BYTES) | (
                settings if stream == "fragments" else {}
            )
            if leaders is None:
                topics.append(NewTopic(self.topic(stream), self.partitions, 1, config=config))
            else:
                topics.append(NewTopic(self.topic(stream), 1, replica_assignment=[[leaders[stream]]], config=config))
        admin = self._admin()
        for future in admin.create_topics(topics).values():
            future.result(30)
        # They enter the broker's metadata a moment later.
        names = {topic.topic for topic in topics}
        wait_until(lambda: names <= {*admin.list_topics(timeout=30).topics}, "the topics are there", 30)

    def delete_topics(self) -> None:
        admin = self._admin()
        topics = [self.topic("fragments"), self.topic("flushes")]
        for future in admin.delete_topics(topics).values():
            future.result(30)
        # They leave the broker's metadata a moment later.
        wait_until(lambda: not {*topics} & {*admin.list_topics(timeout=30).topics}, "the topics are gone", 30)

    def alter(self, stream: str, **settings: str) -> None:
        """Change settings of a stream's topic."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.topic(stream), incremental_configs=entries)
        admin = self._admin()
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def await_first_offset(self, kafka_offset: int) -> None:
        """Wait until the broker has deleted all fragments below ``kafka_offset``."""
        admin = self._admin()
        partition = TopicPartition(self.topic("fragments"), 0)

        def is_first() -> bool:
            earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # untyped in confluent_kafka
            found = admin.list_offsets({partition: earliest})[partition].result(30)
            return bool(found.offset >= kafka_offset)

        wait_until(is_first, f"no fragment below Kafka offset {kafka_offset}", 60)

    def await_compaction(self, *, below: int) -> None:
        """Wait until compaction leaves fewer than ``below`` flush records; each write triggers the cleaner."""

        def is_compacted() -> bool:
            if self._count("flushes") < below:
                return True
            self.write([], ["no notification"])
            return False

        wait_until(is_compacted, f"fewer than {below} flush records", 60, pause_s=0.5)

    def _count(self, stream: str) -> int:
        """The number of records from the earliest Kafka offset on."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "group.id": "count", "enable.partition.eof": True}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(self.topic(stream), p, OFFSET_BEGINNING) for p in range(self.partitions)])
        count, ended = 0, 0
        while ended < self.partitions:
            record = consumer.poll(30)
            assert record is not None
            ended += record.error() is not None
            count += record.error() is None
        consumer.close()
        return count

    @cached_property
    def _producer(self) -> Producer:
        settings: dict[str, object] = {"enable.idempotence": True, "linger.ms": 0}
        settings["bootstrap.servers"] = self.bootstrap_servers
        return Producer({**settings, **self.producer_options}, logger=SILENT)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def write(
        self,
        events: Iterable[FragmentEvent | FlushNotification | str | bytes],
        flushes: Iterable[str | None] = (),
        *,
        deleted: Iterable[str | bytes] = (),
        partition: int = -1,
    ) -> None:
        """Publish events in order, partitioned by their keys, or all to ``partition``.

        Of flushes, ``deleted`` are the keys of tombstones.
        """
        others = [*(("flushes", "text", value) for value in flushes), *(("flushes", key, None) for key in deleted)]
        for stream, key, value in [*map(_record, events), *others]:
            self._producer.produce(self.topic(stream), value, key, partition=partition, on_delivery=_require_delivery)
        assert self._producer.flush(60) == 0

    def transport(self, max_files_per_trigger: int) -> Transport:  # noqa: ARG002  Kafka has its own options
        return KafkaTransport(
            self.bootstrap_servers,
            {role: self.topic(role) for role in ROLES},
            SecretOptions({"kafka.metadata.max.age.ms": "1000", **self.options}),
            retry_timeout_ms=self.retry_timeout_ms,
        )

    def secured_config(self, bootstrap_servers: str, options: Mapping[str, str]) -> JobConfig:
        """The job's configuration with other servers and options."""
        transport = KafkaTransport(
            bootstrap_servers,
            {role: self.topic(role) for role in ROLES},
            SecretOptions(options),
            retry_timeout_ms=self.retry_timeout_ms,
        )
        return replace(self.config(), transport=transport)


def _require_delivery(error: KafkaError | None, _: object) -> None:
    assert error is None, error


def _record(event: FragmentEvent | FlushNotification | str | bytes) -> tuple[str, str | None, str | bytes]:
    """The record's stream, key and value."""
    return ("fragments", None, event) if isinstance(event, str | bytes) else record_of(event)
