"""Fragments of changes for many shapes: routed in parts, so that their items never are in memory all at once."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.log_items import FEW_SHAPES
from flushtracker.shapes.routed_fragment import RoutedFragment, RoutedFragments
from flushtracker.wal.changes import (
    Change,
    Column,
    Commit,
    Delete,
    Insert,
    Relation,
    Row,
    TransactionFragment,
    Truncate,
    Update,
    change_bytes,
)
from flushtracker.wal.log_offset import LogOffset

RELATION = Relation(7, "public", "users", "full", (Column("id", 23, is_key=True), Column("note", 25)))
COMMIT = Commit("2026-11-21T01:02:03.456789Z", 1040)
LSN = 1000


def router() -> EventRouter:
    """Shapes of which a row is in none, in a few, or in many."""
    few = [ShapeDefinition(f"few-{number}", RELATION.table, where="id < 10") for number in range(3)]
    many = [ShapeDefinition(f"many-{number}", RELATION.table, where="id BETWEEN 5 AND 20") for number in range(20)]
    return EventRouter([*few, *many])


def fragment_of(numbers: list[int], *, ends: bool = True) -> TransactionFragment:
    """A fragment that inserts these rows; a negative number truncates the table."""
    changes: list[Change] = []
    for index, number in enumerate(numbers):
        offset = LogOffset(LSN, 2 * index)
        row = {"id": str(number), "note": "x" * number}
        changes.append(Truncate(RELATION, offset) if number < 0 else Insert(RELATION, offset, row))
    commit = COMMIT if ends else None
    return TransactionFragment(7, LSN, changes[-1].offset, has_begin=True, commit=commit, changes=tuple(changes))


def routed_in_parts(fragment: TransactionFragment, most_bytes: int | None) -> list[RoutedFragments]:
    routes, own = [], router()
    rest: TransactionFragment | None = fragment
    while rest is not None:
        routes.append(own.route_some(rest, most_bytes))
        own.check_invariants()
        rest = routes[-1].rest
    return routes


def by_shape(parts: list[RoutedFragment]) -> dict[str, tuple[object, ...]]:
    """What each shape gets: its items, their number, and how often a transaction begins and ends for it."""
    found: dict[str, tuple[object, ...]] = {}
    for shape_id in {part.shape_id for part in parts}:
        own = [part for part in parts if part.shape_id == shape_id]
        items = [item for part in own for item in part.items]
        begins = [part.has_begin for part in own]
        assert begins == [True] + [False] * (len(own) - 1)
        assert [part.commit for part in own[:-1]] == [None] * (len(own) - 1)
        found[shape_id] = (items, sum(part.change_count for part in own), own[-1].commit)
    return found


@given(
    st.lists(st.integers(-1, 30), min_size=1, max_size=30), st.booleans(), st.sampled_from([1, 2_000, 5_000, 50_000])
)
def test_each_shape_gets_the_same_however_much_is_routed_at_once(numbers: list[int], ends: bool, most: int) -> None:  # noqa: FBT001  drawn
    """The parts follow each other, end with their last changes, and only the last has the commit."""
    fragment = fragment_of(numbers, ends=ends)
    routes = routed_in_parts(fragment, most)
    assert tuple(change for route in routes for change in route.fragment.changes) == fragment.changes
    assert [route.fragment.last_log_offset for route in routes] == [
        route.fragment.changes[-1].offset for route in routes
    ]
    assert [route.fragment.commit for route in routes] == [None] * (len(routes) - 1) + [fragment.commit]
    assert [route.fragment.has_begin for route in routes] == [True] + [False] * (len(routes) - 1)
    parts = [part for route in routes for part in route.parts]
    assert by_shape(parts) == by_shape(list(router().route(fragment)))


@pytest.mark.parametrize("most", [None, 10**9])
def test_a_fragment_within_the_limit_is_routed_at_once(most: int | None) -> None:
    """So is any fragment without one."""
    fragment = fragment_of([7] * 50)
    (route,) = routed_in_parts(fragment, most)
    assert (route.fragment, route.rest) == (fragment, None)


def test_a_fragment_is_cut_where_its_items_reach_the_limit() -> None:
    """Each change counts once for each shape that it is for; at least one is routed."""
    fragment = fragment_of([15] * 10)
    size = 20 * change_bytes(fragment.changes[0])
    assert [len(route.fragment.changes) for route in routed_in_parts(fragment, 3 * size)] == [3, 3, 3, 1]
    assert [len(route.fragment.changes) for route in routed_in_parts(fragment, 3 * size + 1)] == [4, 4, 2]
    assert [len(route.fragment.changes) for route in routed_in_parts(fragment, 1)] == [1] * 10


def test_changes_for_few_shapes_are_not_measured() -> None:
    """They take at most so many times the bytes of their fragment."""
    assert 3 < FEW_SHAPES <= 20
    assert len(routed_in_parts(fragment_of([1] * 50), 1)) == 1


def test_each_shape_gets_with_others_what_it_gets_alone() -> None:
    """Those of one form share their items; with other columns, another replica, key or part of the rows they do not."""
    forms: list[dict[str, Any]] = [
        {},
        {"columns": ("id",)},
        {"replica": "full"},
        {"primary_key": ("note",)},
        {"table": ("public", "people")},
        {"compared": frozenset({"note"})},
        {"keys_have_partitions": True},
        {"compared": frozenset({"note"}), "keys_have_partitions": True},
    ]
    wheres = (None, "id < 10", "id = 5")
    definitions = [
        replace(ShapeDefinition(f"{form} {where} {copy}", RELATION.table, where=where), **fields)
        for form, fields in enumerate(forms)
        for where in wheres
        for copy in range(2)
    ]
    old, moved, left = {"id": "5", "note": "a"}, {"id": "6", "note": "a"}, {"id": "50", "note": "b"}
    rows = [("insert", old, old), ("update", old, moved), ("update", moved, left), ("update", left, old)]
    changes = tuple(
        _change(kind, LogOffset(LSN, 2 * number), before, after)
        for number, (kind, before, after) in enumerate([*rows, ("delete", old, old), ("truncate", old, old)])
    )
    fragment = TransactionFragment(7, LSN, changes[-1].offset, has_begin=True, commit=COMMIT, changes=changes)

    def routed(definitions: list[ShapeDefinition]) -> dict[str, RoutedFragment]:
        router = EventRouter(by_oid=True)
        for definition in definitions:
            router.add_shape(definition, table_oid=RELATION.relation_id)
        return {part.shape_id: part for part in router.route(fragment)}

    together = routed(definitions)
    assert together == {shape_id: part for each in definitions for shape_id, part in routed([each]).items()}
    shared = {id(item) for part in together.values() for item in part.items}
    assert len(shared) <= sum(len(part.items) for part in together.values()) // 2


def _change(kind: str, offset: LogOffset, old: Row, new: Row) -> Change:
    match kind:
        case "insert":
            return Insert(RELATION, offset, new)
        case "update":
            return Update(RELATION, offset, old, new)
        case "delete":
            return Delete(RELATION, offset, old)
    return Truncate(RELATION, offset)
