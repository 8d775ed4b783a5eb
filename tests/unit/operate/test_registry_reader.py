"""What the registry's topic says of the shapes of a slot."""

from collections.abc import Iterator

import pytest

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.topic_rules import Topics
from flushtracker.kafka.kafka_config import KafkaConfig
from flushtracker.operate.shapes.registry_reader import RegistryReader
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset


def entry(source: str, shape_id: str, removed_at: LogOffset | None = None) -> bytes:
    definition = ShapeDefinition(shape_id, ("public", "t"), snapshot=False)
    return ShapeEntry(source, definition, 1, LogOffset(1, 0), removed_at).to_json().encode()


def test_live_shapes_are_those_of_each_servers_current_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture compares its file with those of its own server; other slots and earlier epochs do not count."""

    class Reader:
        def __init__(self, _: KafkaConfig) -> None:
            """The topic is below."""

        def values(self, _: str) -> Iterator[bytes]:
            yield from (entry("7/1/s", "old"), entry("7/2/s", "a"), entry("7/2/s", "b"), entry("8/1/s", "c"))
            yield from (entry("7/2/other", "d"), entry("7/2/s", "b", LogOffset(2, 0)))

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr("flushtracker.operate.shapes.registry_reader.TopicReader", Reader)
    look = RegistryReader(KafkaConfig("localhost:9092", Topics("f", "l", "s", "c")), "s")
    assert set(look.live_ids) == {frozenset({"a"}), frozenset({"c"})}
    removed = look.entry("b")
    assert removed is not None
    assert removed.removed_at == LogOffset(2, 0)
