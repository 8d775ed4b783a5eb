"""The router against a naive one, while tables get partitions and names move from one table to another."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import pytest
from hypothesis import given

from flushtracker.errors import ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import Change, Delete, Insert, Relation, TransactionFragment, Truncate, Update
from tests.support.random_wal import RANDOMS
from tests.support.tables import LSN, at, relation, transaction

_LAYOUTS: Final = ("id* day* body", "body day* id*", "id* day* body extra")
_NAMES: Final = (("public", "t"), ("old", "t"), ("public", "u"), ("new", "t_1"), ("public", "t_1"))


@dataclass
class World:
    """Tables by OID, as the server has them: names and columns change, OIDs do not.

    OIDs 1 to 3 are tables with rows; 10 and 20 are partitioned, and 20 may be a partition of 10.
    """

    rng: Random
    relations: dict[int, Relation] = field(default_factory=dict)
    parts: dict[int, dict[int, int]] = field(default_factory=lambda: {10: {}, 20: {}})
    """The leaves of each partitioned table, with when each joined."""
    shapes: dict[str, tuple[int, int, int | None]] = field(default_factory=dict)
    """The table's OID, the start, and the day whose rows the shape has, ``None`` for all."""
    open_shapes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for oid in (1, 2, 3, *range(11, 15)):
            self.describe(oid)

    def describe(self, oid: int) -> None:
        """Give the table a name that another one may have, too, and maybe other columns."""
        schema, name = self.rng.choice(_NAMES)
        made = relation(name, self.rng.choice(_LAYOUTS))
        self.relations[oid] = replace(made, relation_id=oid, schema=schema)

    def tables_of(self, oid: int, lsn: int) -> set[int]:
        """The tables that a change of ``oid`` concerns, which commits at ``lsn``."""
        return {oid, *(table for table, leaves in self.parts.items() if leaves.get(oid, lsn + 1) <= lsn)}

    def expected(self, fragment: TransactionFragment) -> dict[str, list[tuple[str, int]]] | str:
        """What each shape gets, as operations with their offsets; or the shape that ends, by a partial TRUNCATE."""
        found: dict[str, list[tuple[str, int]]] = {}
        for shape_id, (table, starts_after, day) in sorted(self.shapes.items()):
            if fragment.lsn <= starts_after:
                continue
            items, empty, partial = list[tuple[str, int]](), set[int](), False
            leaves = {leaf for leaf, joined in self.parts.get(table, {}).items() if joined <= fragment.lsn}
            for change in fragment.changes:
                oid = change.relation.relation_id
                if table not in self.tables_of(oid, fragment.lsn) or (day is not None and not _has_day(change, day)):
                    continue
                if not isinstance(change, Truncate):
                    empty.discard(oid)
                elif oid != table:
                    empty.add(oid)
                    if not leaves <= empty:
                        partial = True
                        continue
                    partial = False
                items.append((type(change).__name__.lower(), change.offset.op_offset))
            if partial:
                return shape_id
            if items:
                found[shape_id] = items
        return found


def _has_day(change: Change, day: int) -> bool:
    match change:
        case Truncate():
            return True
        case Insert() | Update():
            return change.new["day"] == str(day)
        case Delete():
            return change.old["day"] == str(day)


def _change(rng: Random, table: Relation) -> Change:
    """The key never changes, so a change has one item in each shape."""
    key = {"id": str(rng.randint(0, 3)), "day": str(rng.randint(0, 2))}
    row = {column.name: key.get(column.name, "x") for column in table.columns}
    changes: list[Change] = [Insert(table, at(0), row), Update(table, at(0), None, row), Delete(table, at(0), key)]
    return rng.choice([*changes, *changes, Truncate(table, at(0))])


def _truncate_all(world: World, table: int) -> list[Change]:
    return [Truncate(world.relations[leaf], at(0)) for leaf in world.parts[table]]


def _alter(world: World, router: EventRouter, lsn: int) -> None:
    """One schema change, or a shape that comes or goes."""
    rng = world.rng
    match rng.choice(["describe", "describe", "attach", "attach", "detach", "add", "add", "remove"]):
        case "describe":
            world.describe(rng.choice(list(world.relations)))
        case "attach":
            leaf, table = rng.choice([11, 12, 13, 14]), rng.choice([10, 20])
            joined = rng.choice([0, lsn, lsn + 15])
            world.parts[table].setdefault(leaf, joined)
            router.partitions.add(table, leaf, world.parts[table][leaf])
        case "detach":
            leaf, table = rng.choice([11, 12, 13, 14]), rng.choice([10, 20])
            world.parts[table].pop(leaf, None)
            router.partitions.discard(table, leaf)
        case "add":
            shape_id, oid = f"shape-{len(world.shapes)}-{lsn}-{rng.random()}", rng.choice([1, 2, 3, 10, 10, 20, 11, 12])
            day, starts_after = rng.choice([None, 0, 1]), rng.choice([-1, lsn, lsn + 15])
            where = None if day is None else f"day = {day}"
            name = rng.choice(_NAMES)
            definition = ShapeDefinition(shape_id, name, where=where, primary_key=("id", "day"))
            router.add_shape(definition, starts_after, oid)
            world.shapes[shape_id] = oid, max(starts_after, lsn - 10), day
        case "remove" if world.shapes:
            shape_id = rng.choice(sorted(world.shapes))
            router.remove_shape(shape_id)
            del world.shapes[shape_id]


@given(RANDOMS)
def test_changes_are_routed_by_the_oids_of_tables_and_partitions_whatever_their_names(rng: Random) -> None:
    """Also those that are sent again; a transaction with a partial TRUNCATE ends the shape and no other."""
    world, router = World(rng), EventRouter(by_oid=True)
    (first,) = transaction([], LSN - 10)
    router.route(first)
    sent: list[TransactionFragment] = []
    for lsn in range(LSN, LSN + 10 * rng.randint(2, 12), 10):
        for _ in range(rng.randint(0, 6)):
            _alter(world, router, lsn)
            router.check_invariants()
        tables = list(world.relations.values())
        changes = [_change(rng, rng.choice(tables)) for _ in range(rng.randint(0, 8))]
        changes += _truncate_all(world, rng.choice([10, 20])) if rng.random() < 0.5 else []
        sent += transaction(changes, lsn)
        for fragment in (sent[-1], *([rng.choice(sent)] if rng.random() < 0.3 else [])):
            _compare(world, router, fragment)


def _compare(world: World, router: EventRouter, fragment: TransactionFragment) -> None:
    expected = world.expected(fragment)
    while isinstance(expected, str):
        with pytest.raises(ShapeError, match="TRUNCATE of partition") as raised:
            router.route(fragment)
        assert raised.value.shape_id == expected
        router.remove_shape(expected)
        del world.shapes[expected]
        expected = world.expected(fragment)
    routed = router.route(fragment)
    router.check_invariants()
    found = {part.shape_id: [(item.operation, item.offset.op_offset) for item in part.items] for part in routed}
    assert found == expected
