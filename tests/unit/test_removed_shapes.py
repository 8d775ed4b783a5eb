"""What a source keeps of the shapes that were removed from it, and publishes again of them."""

import pytest

from flushtracker.capture.shape_registry import ShapeRegistry, condensed
from flushtracker.errors import ShapeError
from flushtracker.events.stream_events import FlushNotification
from flushtracker.shapes.definition import ShapeDefinition
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
    assert removed == condensed(source.published("a"))
    assert (removed.definition.columns, removed.table_oid) == (None, 0)
    registry = ShapeRegistry([*before.shapes, removed])
    assert [entry.definition.id for entry in registry.live_on(ROOT)] == ["b"]
    assert registry.table_oids == {ROOT}
    with pytest.raises(ShapeError, match="an id is never used twice"):
        source.define(ShapeDefinition("a", NAME), ShapeDefinition("b", NAME))
