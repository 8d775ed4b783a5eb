"""Where a replay publishes its ticks: directories of files, or Kafka topics."""

from collections import defaultdict
from math import inf
from pathlib import Path
from typing import Final, Protocol

from flushtracker.config.streams import FRAGMENTS, SHAPE_CHANGES, SHAPES
from flushtracker.errors import ConfigError
from flushtracker.event_files import StreamWriter, require_empty
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.kafka.records import record_of
from flushtracker.kafka.topic_admin import TopicAdmin, require_topics
from flushtracker.recordings.replay import Tick

_STREAMS: Final = (FRAGMENTS, SHAPE_CHANGES, SHAPES)


class Output(Protocol):
    """Publishes the streams somewhere."""

    def publish(self, tick: Tick) -> None:
        """Publish the tick's events; all of them are durable when this returns."""

    def summary(self) -> str:
        """What was published so far, and where."""


class FilesOutput:
    """Directories below ``out``, one for each stream; each tick adds a file to each stream that it has events for."""

    def __init__(self, out: Path) -> None:
        directories = {stream: out / stream for stream in _STREAMS}
        require_empty(
            directories.values(),
            "remove the streams together with the checkpoint and tables made from them, or name another --out",
        )
        self._out = out
        try:
            self._writers = {stream: StreamWriter(directory) for stream, directory in directories.items()}
        except ConfigError as error:
            raise ConfigError(f"--out {out}: {error}") from error
        self._files = 0

    def publish(self, tick: Tick) -> None:
        lines = defaultdict[str, list[str]](list)
        for record in map(record_of, tick.events()):
            lines[record.stream].append(record.value)
        for stream, texts in lines.items():
            self._files += self._writers[stream].publish(texts) is not None

    def summary(self) -> str:
        return f"{self._files} files in {self._out}"


class KafkaOutput:
    """The topics of ``config``; each tick is confirmed before the next is published."""

    def __init__(self, config: KafkaConfig) -> None:
        require_topics(config, _STREAMS)
        count = TopicAdmin(config).record_count(FRAGMENTS)
        if count:
            raise ConfigError(
                f"topic {config.topics.fragments} already has records ({count}); remove the topics together "
                "with the checkpoint and tables made from them, or name others"
            )
        self._servers = config.bootstrap_servers
        self._topics = config.topics.by_role()
        self._publisher = KafkaPublisher(config)
        self._records = 0

    def publish(self, tick: Tick) -> None:
        for record in map(record_of, tick.events()):
            self._publisher.publish(self._topics[record.stream], record.key, record.value)
            self._records += 1
        self._publisher.flush(inf)

    def summary(self) -> str:
        return f"{self._records:,} records at {self._servers}"
