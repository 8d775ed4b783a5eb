"""``Notifier``: where the job's flush notifications go, and its implementation for files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from flushtracker.config.transport import KafkaTransport
from flushtracker.config.write_config import WriteConfig
from flushtracker.event_files import StreamWriter
from flushtracker.events.stream_events import FlushNotification
from flushtracker.kafka.flush_notifier import FlushNotifier
from flushtracker.kafka.kafka_config import KafkaConfig, Topics
from flushtracker.wal.log_offset import LogOffset


class Notifier(Protocol):
    """Notes how far each shape is durable, and says so."""

    def start(self, durable: Mapping[tuple[str, str], LogOffset]) -> None:
        """Say again how far each shape is durable."""

    def flushed(self, source: str, shape_id: str, offset: LogOffset) -> None:
        """Everything sent to the shape up to ``offset`` is durable."""

    def flush(self) -> None:
        """Say what was noted; it is durable when this returns."""

    def close(self) -> None:
        """Say nothing more."""


class FilesNotifier:
    """A :class:`Notifier` that writes files of the stream ``flushes``, in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._writer = StreamWriter(Path(directory))
        self._noted: dict[tuple[str, str], LogOffset] = {}

    def start(self, durable: Mapping[tuple[str, str], LogOffset]) -> None:
        """See :class:`Notifier`."""
        self._noted.update(durable)
        self.flush()

    def flushed(self, source: str, shape_id: str, offset: LogOffset) -> None:
        """See :class:`Notifier`."""
        self._noted[source, shape_id] = offset

    def flush(self) -> None:
        """See :class:`Notifier`."""
        self._writer.publish(
            FlushNotification(source, "flushed", shape_id, offset).to_json()
            for (source, shape_id), offset in sorted(self._noted.items())
        )
        self._noted.clear()

    def close(self) -> None:
        """See :class:`Notifier`."""


def open_notifier(config: WriteConfig) -> Notifier:
    """The notifier that the configuration names; raises ``ConfigError``."""
    transport, flushes = config.transport, config.flushes
    if not isinstance(transport, KafkaTransport):
        return FilesNotifier(flushes.name)
    # The job never publishes fragments, and knows no topic of them.
    topics = Topics(fragments="", flushes=flushes.name, **transport.streams)
    return FlushNotifier(KafkaConfig(transport.bootstrap_servers, topics, flushes.options))
