"""Which shapes get a snapshot, by what capture has registered and what snapshots there are."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from flushtracker.errors import ConfigError
from flushtracker.events.registry import Registry
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shape_log.snapshot.due_shapes import due_shapes, require_known
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_entries import TABLE

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


def test_a_shape_that_only_a_replaced_source_has_is_named_with_both_sources() -> None:
    """It was said to have ``snapshot: false``, whatever it has; and to have ended, if it had there."""
    last = LogOffset(1000, 0)
    ended = replace(entry("ended"), removed_at=last, ended_because="its table was dropped")
    without = entry("ended", f"{SOURCE}/1")
    without = replace(without, definition=replace(without.definition, snapshot=False))
    registry = Registry.of([entry("old"), ended, without, entry("new", f"{SOURCE}/1")])
    require_known(registry, "7301/1", ["new"])
    with pytest.raises(ConfigError) as raised:
        require_known(registry, "7301/1", ["old"])
    assert str(raised.value) == (
        f"shape old is one of source {SOURCE}, which {SOURCE}/1 has replaced, and that has no such shape; check the "
        "shapes file, and that capture runs"
    )
    with pytest.raises(ConfigError, match="shape ended has snapshot: false"):
        require_known(registry, "7301/1", ["ended"])


def test_snapshots_go_where_the_writer_of_the_shape_reads_them() -> None:
    """The log's to the log, those of one's own to Kafka; who asks for the other one is told where it is."""
    own = entry("own")
    own = replace(own, definition=replace(own.definition, writer="search"))
    table = TableEntry(SOURCE, TABLE.binding)
    registry = Registry.of([entry("log"), own, table])

    def due_ids(takes: Callable[[str], bool]) -> list[str]:
        found = due_shapes(registry, {}, "7301/1", takes=takes).tables
        return [each.definition.id for group in found for each in group.shapes]

    def is_own(writer: str) -> bool:
        return writer != "log"

    assert due_ids(lambda writer: writer == "log") == ["log"]
    assert due_ids(is_own) == ["own"]
    require_known(registry, "7301/1", ["own"], is_own)
    with pytest.raises(
        ConfigError, match=r"shape own has the writer 'search', .*: run flushtracker snapshot with snapshot\.into"
    ):
        require_known(registry, "7301/1", ["own"])
    with pytest.raises(ConfigError, match=r"shape log has the writer 'log', .* with snapshot\.into: log"):
        require_known(registry, "7301/1", ["log"], is_own)
