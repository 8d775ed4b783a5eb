"""Which shapes get a snapshot, by what capture has registered and what snapshots there are."""

from dataclasses import replace
from typing import Final

from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.jobs.snapshot.due_shapes import due_shapes
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.unit.test_registry_events import TABLE

SOURCE: Final = "7301/1/shapes"
OID: Final = TABLE.binding.oid


def entry(shape_id: str, source: str = SOURCE, incarnation: int = 1) -> ShapeEntry:
    definition = ShapeDefinition(shape_id, ("public", "users"), snapshot=True, incarnation=incarnation)
    return ShapeEntry(source, definition, OID, LogOffset(900, 0), starts_visible=True)


def due(*entries: ShapeEntry, taken: dict[tuple[str, str], int], again: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """The shapes that are due, each with its source."""
    tables = [TableEntry(source, TABLE.binding) for source in {each.source for each in entries}]
    found = due_shapes(Registry.of([*entries, *tables]), taken, "7301/1", again, again).tables
    return [(group.source, each.definition.id) for group in found for each in group.shapes]


def test_a_shape_that_begins_again_is_due_again() -> None:
    """Until there is a snapshot of that incarnation; a later one, as of a job that is ahead of the registry, counts."""
    shapes = entry("a", incarnation=2), entry("b", incarnation=2), entry("c", incarnation=2), entry("d")
    taken = {(SOURCE, "a"): 1, (SOURCE, "b"): 2, (SOURCE, "c"): 3}
    assert due(*shapes, taken=taken) == [(SOURCE, "a"), (SOURCE, "d")]


def test_a_source_that_another_has_replaced_gets_no_more_snapshots() -> None:
    """After a lost slot, its shapes are still live in the registry, with the ids that the new source has, too."""
    shapes = entry("a"), entry("a", f"{SOURCE}/1"), entry("b"), replace(entry("c", f"{SOURCE}/1"), starts_visible=False)
    assert due(*shapes, taken={}) == [(f"{SOURCE}/1", "a")]
    taken = {(SOURCE, "a"): 1, (f"{SOURCE}/1", "a"): 1}
    assert due(*shapes, taken=taken, again=("a",)) == [(f"{SOURCE}/1", "a")]
