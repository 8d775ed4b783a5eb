"""What a source keeps of the shapes that were removed from it, and publishes again of them."""

from dataclasses import replace
from random import Random

import pytest

from flushtracker.capture.shapes.shape_registry import ShapeRegistry, trimmed
from flushtracker.events.registry_events import NO_TABLE, ShapeEntry
from flushtracker.events.stream_events import FlushNotification
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.fake_world import shape_entry
from tests.support.scripted_source import LSN, NAME, ROOT, KilledError, LongLivedSource, Source, removals


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
        except KilledError:
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
