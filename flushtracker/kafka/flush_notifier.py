"""``FlushNotifier``: reports how far each of a writer's shapes is durable."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from flushtracker.events.records import record_of
from flushtracker.events.stream_events import FlushNotification
from flushtracker.kafka.kafka_config import KafkaConfig, load_kafka_config
from flushtracker.kafka.publisher import KafkaPublisher
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import is_usable_name


class FlushNotifier:
    """Publishes a writer's flush notifications, from one thread, to the brokers and the topic of ``config``.

    ::

        with FlushNotifier(Path("flushtracker.yaml"), writer="own") as notifier:
            notifier.start(durable)                            # what storage holds: (source, shape_id) -> LogOffset
            ...
            commit_to_storage()                                # first durable,
            notifier.flushed("7301/1/shapes", "users", offset) # then reported
            notifier.flush()                                   # confirmed by the brokers

    ``writer`` must be the ``writer`` of these shapes in the shapes file: notifications under another name move no ack.

    ``flushed`` only records the offset: for each shape, one notification is published by the next :meth:`publish` or
    :meth:`flush`, however many calls there were. A shape's offset never goes back: a lower one repeats the greatest, as
    for resent changes that the writer already has. Keys and partitioner are those of capture's records. Only capture
    publishes ``removed``.

    Offsets are not verified: if one is not durable, PostgreSQL deletes WAL of data that is stored nowhere else.

    The block waits for confirmation at its end, unless it is left by an exception. After a ``BrokerError``, create
    another notifier and start it with the durable offsets.

    Raises:
        ConfigError: the file cannot be used, or the client rejects its options.
    """

    def __init__(self, config: KafkaConfig | Path, *, writer: str) -> None:
        if not is_usable_name(writer):
            raise ValueError(f"writer {writer!r} cannot be notified: a name is not empty and has no control characters")
        self._writer = writer
        if isinstance(config, Path):
            config = load_kafka_config(config)
        self._topic = config.topics.flushes
        self._retry_timeout_s = config.retry_timeout_ms / 1000
        self._publisher = KafkaPublisher(config)
        self._offsets: dict[tuple[str, str], LogOffset] = {}
        self._waiting: set[tuple[str, str]] = set()

    def start(self, durable: Mapping[tuple[str, str], LogOffset]) -> None:
        """Repeat how far each ``(source, shape_id)`` is durable; returns once the brokers have confirmed it.

        The previous process may have ended between a commit and its notification, which would otherwise be lost.

        Raises:
            ValueError: as :meth:`flushed`.
            BrokerError: as :meth:`flush`.
        """
        for (source, shape_id), offset in durable.items():
            self.flushed(source, shape_id, offset)
        self.flush()

    def flushed(self, source: str, shape_id: str, offset: LogOffset) -> None:
        """Record that everything sent to the shape up to and including ``offset`` is durable.

        Raises:
            ValueError: a name is empty or has control characters, or the offset is before all transactions.
        """
        if not (is_usable_name(source) and is_usable_name(shape_id)) or offset.tx_offset < 0:
            raise ValueError(f"({source!r}, {shape_id!r}) at {offset} cannot be notified: no such shape or offset")
        key = source, shape_id
        self._offsets[key] = max(offset, self._offsets.get(key, offset))
        self._waiting.add(key)

    def forget(self, source: str, shape_id: str) -> None:
        """Drop the offset of a removed shape, unless it is still to be published."""
        if (source, shape_id) not in self._waiting:
            self._offsets.pop((source, shape_id), None)

    def publish(self) -> None:
        """Pass recorded offsets to the client, which sends it in the background; does not wait for confirmation.

        Raises:
            BrokerError: a notification cannot be delivered.
        """
        for source, shape_id in sorted(self._waiting):
            offset = self._offsets[source, shape_id]
            record = record_of(FlushNotification(source, "flushed", shape_id, offset, self._writer))
            self._publisher.publish(self._topic, record.key, record.value)
        self._waiting.clear()
        self._publisher.poll()

    def flush(self) -> None:
        """Publish, and wait until the brokers have confirmed everything.

        Raises:
            BrokerError: a notification cannot be delivered, or is not confirmed within ``retry_timeout``.
        """
        self.publish()
        self._publisher.flush(self._retry_timeout_s)

    def close(self) -> None:
        """Discard unconfirmed notifications; the next :meth:`start` repeats them."""
        self._publisher.close()

    def __enter__(self) -> "FlushNotifier":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()
