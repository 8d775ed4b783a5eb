"""A tracking job that reads two topics of its own on a real broker."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from flushtracker.config import KafkaSource, SourceConfig
from flushtracker.events import FlushNotification, FragmentEvent
from flushtracker.kafka.keys import flush_key, fragment_key
from flushtracker.kafka.topic_rules import topic_settings
from flushtracker.secret_options import SecretOptions
from tests.spark.job_folder import JobFolder

_RETENTION_MS = 7 * 86_400_000


@dataclass(frozen=True)
class KafkaJob(JobFolder):
    """As a :class:`JobFolder`, with topics in place of directories, made when the job is."""

    bootstrap_servers: str = ""
    partitions: int = 1
    options: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    patience_ms: int = 60_000

    def __post_init__(self) -> None:
        self.create_topics()

    def topic(self, stream: str) -> str:
        return f"{stream}-{self.name}"

    def create_topics(self, **settings: str) -> None:
        """Make both topics as they must be, but for ``settings`` of the fragments' one."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topics = []
        for stream in ("fragments", "flushes"):
            config = topic_settings(stream, retention_ms=_RETENTION_MS) | (settings if stream == "fragments" else {})
            topics.append(NewTopic(self.topic(stream), self.partitions, 1, config=config))
        for made in admin.create_topics(topics).values():
            made.result(30)

    def write(
        self,
        events: Iterable[FragmentEvent | FlushNotification | str],
        flushes: Iterable[str] = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Publish events under their keys and in their order, or all in one ``partition``; text has no key."""
        where = {} if partition is None else {"partition": partition}
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0})
        for event in (*events, *flushes):
            if isinstance(event, FragmentEvent):
                producer.produce(self.topic("fragments"), event.to_json(), fragment_key(event.source), **where)
            elif isinstance(event, FlushNotification):
                key = flush_key(event.source, event.shape_id, event.type)
                producer.produce(self.topic("flushes"), event.to_json(), key, **where)
            else:
                stream = "flushes" if event in flushes else "fragments"
                producer.produce(self.topic(stream), event, **where)
        assert producer.flush(30) == 0

    def source_config(self, max_files_per_trigger: int) -> SourceConfig:
        return KafkaSource(
            self.bootstrap_servers,
            self.topic("fragments"),
            self.topic("flushes"),
            SecretOptions({"kafka.metadata.max.age.ms": "1000", **self.options}),
            patience_ms=self.patience_ms,
        )
