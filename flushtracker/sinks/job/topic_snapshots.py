"""``PublishedSnapshots``: finds complete snapshots in the stream ``snapshots``, and reads their rows."""

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass

from flushtracker.events.snapshot_events import SnapshotEnd, SnapshotEvent
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.kafka.topic_reader import TopicReader
from flushtracker.shape_log.snapshot_reader import SnapshotReader


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A complete attempt: its events are in one partition, between these Kafka offsets, among others."""

    source: str
    shape_id: str
    incarnation: int
    attempt: int
    partition: int
    first: int
    end: int
    contains: SnapshotEnd


class PublishedSnapshots:
    """Reads the stream from its beginning. Only the places of events are kept, because rows may be many."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config, self._topic = config, topic
        self._reader = SnapshotReader()
        self._read_until: dict[int, int] = {}
        self._firsts: dict[tuple[str, str], tuple[int, int]] = {}
        """By shape, the incarnation and the offset of the last attempt's first event."""
        self._found: dict[tuple[str, str], FoundSnapshot] = {}

    def look(self) -> None:
        """Read what is new; raises ``BrokerError`` and ``DecodeError``."""
        with closing(TopicReader(self._config)) as reader:
            for partition, offset, value in reader.records_since(self._topic, self._read_until):
                self._take(SnapshotEvent.from_json(value), partition, offset)
                self._read_until[partition] = offset + 1

    def keep(self, is_needed: Callable[[str, str, int], bool]) -> None:
        """Forget the snapshots of all other shapes, by source, id and incarnation."""
        for shape in [each for each, (incarnation, _) in self._firsts.items() if not is_needed(*each, incarnation)]:
            del self._firsts[shape]
            self._found.pop(shape, None)
            self._reader.forget(*shape)

    def complete(self, source: str, shape_id: str) -> FoundSnapshot | None:
        """The last complete attempt of the shape's last incarnation."""
        return self._found.get((source, shape_id))

    def events(self, found: FoundSnapshot) -> Generator[SnapshotEvent, None, None]:
        """Its events in order; close it. Raises ``BrokerError`` and ``DecodeError``."""
        reader = SnapshotReader()
        with closing(TopicReader(self._config)) as topic:
            for value in topic.between(self._topic, found.partition, found.first, found.end):
                event = SnapshotEvent.from_json(value)
                is_one = (event.source, event.shape_id, event.attempt) == (found.source, found.shape_id, found.attempt)
                if is_one and reader.take(event) != "ignored":
                    yield event

    def _take(self, event: SnapshotEvent, partition: int, offset: int) -> None:
        shape = event.source, event.shape_id
        position = self._reader.take(event)
        if position == "first":
            self._firsts[shape] = event.incarnation, offset
        if position == "ignored" or event.end is None:
            return
        self._found[shape] = FoundSnapshot(
            *shape, event.incarnation, event.attempt, partition, self._firsts[shape][1], offset + 1, event.end
        )
