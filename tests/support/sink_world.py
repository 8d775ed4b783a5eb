"""``SinkWorld``: the feeder of Kafka sinks on topics in memory, which keep only what has not been read."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import pytest

from flushtracker.events.topic_rules import TopicFacts, Topics
from flushtracker.kafka import flush_notifier
from flushtracker.kafka.group_offsets import Place, SampledOffsets, Subject
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.sinks.job import feeder, sink_registry, stored_feeds, topic_snapshots
from flushtracker.sinks.job.feed_config import FeedConfig, SinkTopic
from flushtracker.sinks.job.feeder import SinkFeeder
from flushtracker.sinks.job.live_sink_status import LiveSinkStatus

SOURCE: Final = "7/1/s"
STATE: Final = "sinks"
GROUP: Final = "group"
TOPICS: Final = Topics(fragments="f", flushes="l", shape_changes="c", shapes="s", snapshots="n", snapshots_taken="t")


class ManyTopics(Mapping[str, SinkTopic]):
    """A topic for each shape ``s…``, and none for others."""

    def __getitem__(self, shape_id: str) -> SinkTopic:
        if not shape_id.startswith("s"):
            raise KeyError(shape_id)
        return SinkTopic(f"topic {shape_id}", (GROUP,), 1)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class OnePartition(Mapping[str, TopicFacts]):
    """Every topic has one partition, and an id that it gets when it is created."""

    def __init__(self, topic_id: str = "first") -> None:
        self._topic_id = topic_id

    def __getitem__(self, topic: str) -> TopicFacts:
        return TopicFacts(topic, 1, {}, self._topic_id)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class SinkWorld:
    """The program's topics, and what stands in for all Kafka clients of the feeder.

    Groups read each record at once. Each call of :meth:`run` does everything that the loop does, once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: Mapping[str, SinkTopic] | None = None) -> None:
        self.kept: dict[str, list[bytes]] = defaultdict(list)
        self.firsts: dict[str, int] = defaultdict(int)
        self.ends: dict[str, int] = defaultdict(int)
        """Of the sinks' topics, which keep no records."""
        self.gone: set[str] = set()
        self.unanswered: dict[Subject, str] = {}
        self.flushed: dict[bytes, bytes] = {}
        self.open_readers = 0
        self.now_s = 0.0
        for module in (stored_feeds, sink_registry, topic_snapshots):
            monkeypatch.setattr(module, "TopicReader", lambda *_, **__: self.open_reader())
        monkeypatch.setattr(feeder, "TransactionalProducer", lambda *_, **__: _Transactions(self))
        monkeypatch.setattr(feeder, "GroupOffsets", lambda _: _Groups(self))
        monkeypatch.setattr(feeder, "ChangesReader", lambda _, __, positions: _Changes(self, positions))
        monkeypatch.setattr(flush_notifier, "KafkaPublisher", lambda _: _Flushes(self))
        monkeypatch.setattr(feeder, "time", self)
        kafka = KafkaConfig("broker:9092", TOPICS)
        self.config = FeedConfig(kafka, "kafka", "app", "", 500, STATE, ManyTopics() if topics is None else topics)
        self.live = LiveSinkStatus()
        self.start()

    def start(self, topic_id: str = "first") -> None:
        """A process that continues from what is stored, in topics with this id."""
        self.feeder = SinkFeeder(self.config, OnePartition(topic_id), self.live, {})

    def monotonic(self) -> float:
        self.now_s += 60
        return self.now_s

    def run(self, rounds: int = 2) -> None:
        left = iter([False] * rounds)
        self.feeder.run(lambda: next(left, True))

    def forget_records(self) -> None:
        """Delete what was read."""
        for topic, values in self.kept.items():
            self.firsts[topic] += len(values)
            values.clear()
        self.ends.clear()
        self.flushed.clear()

    def values_of(self, topic: str, first: int, end: int | None = None) -> list[bytes]:
        begin = self.firsts[topic]
        return self.kept[topic][max(first - begin, 0) : None if end is None else end - begin]

    def records_since(self, topic: str, starts: Mapping[int, int]) -> Iterator[tuple[int, int, bytes]]:
        first = max(starts.get(0, 0), self.firsts[topic])
        for place, value in enumerate(self.values_of(topic, first), first):
            yield 0, place, value

    def since(self, topic: str, starts: Mapping[int, int]) -> tuple[list[bytes], dict[int, int]]:
        found = [value for _, _, value in self.records_since(topic, starts)]
        return found, {0: self.firsts[topic] + len(self.kept[topic])}

    def between(self, topic: str, _partition: int, first: int, end: int) -> list[bytes]:
        return self.values_of(topic, first, end)

    def values(self, topic: str) -> list[bytes]:
        return self.kept[topic]

    def open_reader(self) -> "SinkWorld":
        self.open_readers += 1
        return self

    def close(self) -> None:
        self.open_readers -= 1


class _Transactions:
    def __init__(self, world: SinkWorld) -> None:
        self._world = world
        self._places: dict[Place, tuple[int, int]] = {}

    def begin(self) -> None:
        self._places = {}

    def publish(
        self, topic: str, _key: bytes | None, value: bytes | None, _headers: object = (), partition: int = -1
    ) -> None:
        if topic == STATE and value is not None:
            self._world.kept[topic].append(value)
        place, end = (topic, max(partition, 0)), self._world.ends[topic]
        self._places[place] = self._places.get(place, (end, end))[0], end + 1
        self._world.ends[topic] = end + 1

    def places(self) -> dict[Place, tuple[int, int]]:
        return self._places

    def commit(self) -> None:
        self._places = {}

    def abort(self) -> None:
        self._world.ends.update({topic: first for (topic, _), (first, _) in self._places.items()})


class _Groups:
    def __init__(self, world: SinkWorld) -> None:
        self._world = world

    def sample(self, places: Mapping[str, Collection[Place]]) -> SampledOffsets:
        found = {place for read in places.values() for place in read if place[0] not in self._world.gone}
        ends = {place: self._world.ends[place[0]] for place in found}
        return SampledOffsets(dict.fromkeys(found, 0), dict.fromkeys(places, ends), ends, dict(self._world.unanswered))

    def close(self) -> None:
        pass


class _Changes:
    def __init__(self, world: SinkWorld, positions: Mapping[int, int]) -> None:
        self._world = world
        self.positions = {0: 0, **positions}

    def records(self, _most: int, _timeout_s: float) -> Iterable[tuple[int, int, bytes]]:
        for partition, offset, value in self._world.records_since(TOPICS.shape_changes, self.positions):
            self.positions = {partition: offset + 1}
            yield partition, offset, value

    def rewind(self, partition: int, offset: int) -> None:
        self.positions = {partition: min(offset, self.positions[partition])}


class _Flushes:
    def __init__(self, world: SinkWorld) -> None:
        self._world = world

    def publish(self, _topic: str, key: bytes, value: bytes) -> None:
        self._world.flushed[key] = value

    def poll(self) -> None:
        pass
