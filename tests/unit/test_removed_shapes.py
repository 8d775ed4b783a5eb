"""What a source keeps of the shapes that were removed from it, and publishes again of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from flushtracker.capture.shape_registry import ShapeRegistry, SourceEntries, trimmed
from flushtracker.events.registry_events import NO_TABLE, RegistryEntry, ShapeEntry, parse_registry_entry
from flushtracker.events.stream_events import FlushNotification
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_publisher import FakePublisher
from tests.support.fake_world import shape_entry
from tests.unit.test_subscriptions import LSN, NAME, ROOT, Source


def removals(source: Source) -> list[FlushNotification]:
    """The removals that were published."""
    found = (FlushNotification.from_json(value) for topic, value in source.publisher.values if topic == "l")
    return [each for each in found if each.type == "removed"]


def test_a_removal_is_published_again_only_until_the_slot_is_confirmed_past_it() -> None:
    """Before, the first process may have been killed before it published it; after, nobody waits for it any more."""
    source = Source()
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME), ShapeDefinition("c", NAME))
    source.define(ShapeDefinition("b", NAME), ShapeDefinition("c", NAME))
    (removal,) = removals(source)
    entries = source.subscriptions.entries
    for confirmed_lsn, times in ((LSN, 1), (removal.offset.tx_offset, 1), (removal.offset.tx_offset + 1, 0)):
        source.publisher.values.clear()
        source.resume(entries, confirmed_lsn)
        assert removals(source) == [removal] * times


def test_of_a_removed_shape_little_is_kept_and_its_id_stays_used() -> None:
    """A source may remove shapes for years, and looks up those on a table at each of its changes."""
    source = Source()
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    before = source.subscriptions.entries
    source.define(ShapeDefinition("b", NAME))
    removed = next(entry for entry in source.subscriptions.entries.shapes if entry.removed_at is not None)
    assert removed == trimmed(source.published("a"))
    assert (removed.definition.columns, removed.definition.table, removed.table_oid) == (None, NO_TABLE, 0)
    assert trimmed(removed) is removed
    registry = ShapeRegistry([*before.shapes, removed])
    assert [entry.definition.id for entry in registry.live_on(ROOT)] == ["b"]
    assert registry.table_oids == {ROOT}
    source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
    assert ["an id is never used twice" in each.reason for each in source.subscriptions.refused.shown] == [True]


def test_an_ended_shape_is_condensed_once_it_is_no_longer_defined() -> None:
    """Its definition is compared until then; one that the user removed is not defined any more."""
    removed = shape_entry("a", removed_at=LSN)
    ended = replace(removed, ended_because="dropped")
    for entry, defined, is_condensed in (
        (ended, {"a"}, False),
        (ended, None, False),
        (ended, {"b"}, True),
        (removed, {"a"}, True),
        (removed, None, True),
    ):
        registry = ShapeRegistry([entry])
        assert list(registry.condensable(LSN + 1, defined)) == [entry.condensed()] * is_condensed
        assert list(registry.condensable(LSN, defined)) == []


class _KilledError(Exception):
    """The process was killed."""


class CompactedTopics(FakePublisher):
    """Keeps the last value of each key, as compaction does in the end. Kills the process before a record, if told."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: dict[tuple[str, str], str] = {}
        self.records_left = 1_000_000

    def publish(
        self, topic: str, key: str | bytes, value: str | bytes | None, on_confirmed: Callable[[], None] | None = None
    ) -> None:
        if self.records_left == 0:
            raise _KilledError
        self.records_left -= 1
        super().publish(topic, key, value, on_confirmed)
        if value is None:
            self.topics.pop((topic, str(key)), None)
        else:
            self.topics[topic, str(key)] = str(value)

    def registry(self) -> list[RegistryEntry]:
        return [parse_registry_entry(value) for (topic, _), value in self.topics.items() if topic == "s"]

    def flushes(self) -> set[tuple[str, str]]:
        """The shapes with flushes, and their types."""
        found = [json.loads(key) for topic, key in self.topics if topic == "l"]
        return {(shape_id, kind) for _, shape_id, kind, _ in found}


class LongLivedSource(Source):
    """A source whose capture is killed and restarted, and whose topics are compacted."""

    def __init__(self) -> None:
        super().__init__()
        self.publisher = self.topics = CompactedTopics()
        self.confirmed_lsn = LSN
        self.removed: dict[str, int] = {}
        """By definition: the shapes that were ever removed, with where."""
        self.resume(SourceEntries(), LSN)
        self.subscriptions.begin_source()

    def restart(self, behind: int = 0) -> None:
        """Start capture; the server may have lost, in a crash, what was confirmed last."""
        self.topics.records_left = 1_000_000
        self.resume(self.registered(), max(LSN, self.confirmed_lsn - behind))

    def registry(self) -> list[RegistryEntry]:
        return self.topics.registry()

    def live(self) -> list[str]:
        return [entry.definition.id for entry in self.subscriptions.entries.shapes if entry.removed_at is None]

    def note_removed(self) -> None:
        for entry in self.registry():
            if isinstance(entry, ShapeEntry) and entry.removed_at is not None:
                self.removed.setdefault(entry.definition.id, entry.removed_at.tx_offset)


@pytest.mark.parametrize("seed", range(200))
def test_the_topics_keep_only_what_somebody_may_need(seed: int) -> None:
    """Shapes come and go, and capture is killed anywhere. A removal stays in ``flushes`` until it is confirmed.

    In the end each shape that was removed has one short entry, with its reason, and nothing in ``flushes``.
    """
    rng, source, number = Random(seed), LongLivedSource(), 0  # noqa: S311  reproducible
    for _ in range(30):
        source.topics.records_left = rng.choice([1_000_000, 1_000_000, rng.randint(0, 8)])
        try:
            match rng.randrange(5):
                case 0 | 1:
                    number += 1
                    defined = [f"shape-{number}", *source.live()]
                    defined = rng.sample(defined, rng.randint((len(defined) + 1) // 2, len(defined)))
                    source.subscriptions.apply_definitions((ShapeDefinition(each, NAME) for each in defined), 1000)
                case 2:
                    live = source.live()
                    source.subscriptions.end_shapes(
                        dict.fromkeys(rng.sample(live, min(len(live), 1)), "it cannot go on")
                    )
                case 3:
                    for shape_id in source.live():
                        flush = FlushNotification(
                            "7/1/s", "flushed", shape_id, LogOffset(source.confirmed_lsn, 0), "log"
                        )
                        source.topics.publish("l", f'["7/1/s","{shape_id}","flushed","log"]', flush.to_json())
                case _:
                    source.confirmed_lsn += rng.choice([0, 600])
                    source.tables.ends_at = max(source.tables.ends_at, source.confirmed_lsn)
                    source.subscriptions.removed.condense(source.confirmed_lsn)
        except _KilledError:
            source.restart()
        source.note_removed()
        if rng.random() < 0.2:
            source.restart(behind=rng.choice([0, 600, 1200]))
        unconfirmed = {shape_id for shape_id, lsn in source.removed.items() if lsn >= source.confirmed_lsn}
        told = {shape_id for shape_id, kind in source.topics.flushes() if kind == "removed"}
        assert unconfirmed <= told
    source.restart()
    source.confirmed_lsn += 10_000
    source.subscriptions.apply_definitions((ShapeDefinition(each, NAME) for each in source.live()), 1000)
    source.subscriptions.removed.condense(source.confirmed_lsn)
    source.restart()
    assert {shape_id for shape_id, _ in source.topics.flushes()}.isdisjoint(source.removed)
    entries = {each.definition.id: each for each in source.registry() if isinstance(each, ShapeEntry)}
    assert {shape_id for shape_id, entry in entries.items() if entry.is_condensed} == source.removed.keys()
    assert all(len(entry.to_json()) < 200 for entry in entries.values() if entry.is_condensed)
    for shape_id in source.removed:
        if entries[shape_id].ended_because is None:
            source.define(ShapeDefinition(shape_id, NAME), *(ShapeDefinition(each, NAME) for each in source.live()))
            (refused,) = source.subscriptions.refused.shown
            assert "an id is never used twice" in refused.reason
    source.topics.records_left = 0
    source.resume(source.registered(), source.confirmed_lsn)
    source.subscriptions.removed.condense(source.confirmed_lsn)  # Publishes nothing: all of it is done.
