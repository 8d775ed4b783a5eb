"""``Notifier``: publishes the job's flush notifications; with an implementation for files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import WriteConfig
from flushtracker.event_files import StreamWriter
from flushtracker.events.stream_events import FlushNotification
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.flush_notifier import FlushNotifier
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER


class Notifier(Protocol):
    """Collects how far each shape is durable, and publishes it."""

    def start(self, durable: Mapping[tuple[str, str], LogOffset]) -> None:
        """Notify again how far each shape is durable; called once, before the first batch."""

    def flushed(self, source: str, shape_id: str, offset: LogOffset) -> None:
        """Record that everything sent to the shape up to ``offset`` is durable."""

    def flush(self) -> None:
        """Publish what was recorded; it is durable when this returns."""

    def forget(self, source: str, shape_id: str) -> None:
        """Forget a removed shape; nothing is recorded for it, and nothing will be for this incarnation."""

    def close(self) -> None:
        """Stop publishing, and free resources."""


class FilesNotifier:
    """A :class:`Notifier` that writes files of the stream ``flushes``, in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._writer = StreamWriter(Path(directory))
        self._pending: dict[tuple[str, str], LogOffset] = {}

    def start(self, durable: Mapping[tuple[str, str], LogOffset]) -> None:
        self._pending.update(durable)
        self.flush()

    def flushed(self, source: str, shape_id: str, offset: LogOffset) -> None:
        self._pending[source, shape_id] = offset

    def flush(self) -> None:
        self._writer.publish(
            FlushNotification(source, "flushed", shape_id, offset, LOG_WRITER).to_json()
            for (source, shape_id), offset in sorted(self._pending.items())
        )
        self._pending.clear()

    def forget(self, source: str, shape_id: str) -> None:
        """See :class:`Notifier`."""

    def close(self) -> None:
        """See :class:`Notifier`."""


def open_notifier(config: WriteConfig) -> Notifier:
    """The notifier that the configuration names; raises ``ConfigError``."""
    transport, flushes = config.transport, config.flushes
    if not isinstance(transport, KafkaTransport):
        return FilesNotifier(flushes.name)
    # The job never publishes fragments, and has no topic for them.
    topics = Topics(fragments="", flushes=flushes.name, **transport.streams)
    return FlushNotifier(KafkaConfig(transport.bootstrap_servers, topics, flushes.options), writer=LOG_WRITER)
