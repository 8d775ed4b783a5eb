"""The index finds the shapes that a scan of all shapes would find, without evaluating the others."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from unittest import mock

import pytest
from hypothesis import given

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes import range_index
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.shapes.shape import BoundShape, Shape
from flushtracker.shapes.shape_index import IndexedShape, ShapeIndex
from flushtracker.wal.changes import (
    Change,
    Column,
    Delete,
    Insert,
    Relation,
    Row,
    TransactionFragment,
    Truncate,
    Update,
)
from tests.support import random_ranges, where_table
from tests.support.random_wal import RANDOMS
from tests.support.tables import FULL_USERS, KEYLESS_USERS, LSN, USERS, at, relation, transaction


class PlainScan(ShapeIndex):
    """Returns every shape of the table as a candidate: slow, and obviously correct."""

    def candidates(self, change: Change, lsn: int) -> Sequence[IndexedShape]:  # noqa: ARG002
        return [indexed for indexed in self._shapes.values() if indexed.starts_after < lsn]


class PlainRouter(EventRouter):
    _index_type = PlainScan


ORDERS = relation("orders", "id* region day qty")
FULL_ORDERS = relation("orders", "id region day qty", "full")
# `region` comes first, `qty` is text.
ALTERED_ORDERS = replace(
    FULL_ORDERS, columns=(FULL_ORDERS.columns[1], FULL_ORDERS.columns[0], replace(FULL_ORDERS.columns[3], type_oid=25))
)
PART = relation("orders_p1", "id region day qty", "full")
VALUES = ["1", "2", "3", "01", None]
REGIONS = ["eu", "us", "EU", "eu ", None]
ATOMS = [
    *("id = 1", "id = 2", "id IN (1, 3)", "qty = 1", "2 = qty", "qty = '1'", "qty > 1", "day = 2"),
    *("region = 'eu'", "region IN ('us', 'EU', NULL)", "region <> 'eu'", "region IS NULL", "NOT id = 1"),
    *("id BETWEEN 1 AND 2", "id <= 2", "2 < qty", "region LIKE 'e%'"),
]


def random_where(rng: Random) -> str | None:
    atoms = rng.sample(ATOMS, rng.choice([0, 1, 1, 1, 2, 2, 3]))
    text = f" {rng.choice(['AND', 'AND', 'OR'])} ".join(atoms)
    return text or None


def random_definition(rng: Random, number: int) -> ShapeDefinition:
    table = rng.choice([FULL_ORDERS.table, FULL_ORDERS.table, PART.table])
    key = ("id",) if rng.random() < 0.7 else None
    return ShapeDefinition(f"shape-{number}", table, where=random_where(rng), primary_key=key)


def random_row(rng: Random, table: Relation) -> Row:
    values = {"id": VALUES[:-1], "region": REGIONS}
    return {column.name: rng.choice(values.get(column.name, VALUES)) for column in table.columns}


def random_change(rng: Random, table: Relation) -> Change:
    """As the server sends it: under FULL with the whole old row, else with the old key if that has changed."""
    full = table.replica_identity == "full"
    old, new = random_row(rng, table), random_row(rng, table)
    if not full:
        old = {"id": old["id"]}
    kind = rng.choice(["insert", "insert", "delete", "update", "update", "update", "truncate"])
    if kind == "truncate":
        return Truncate(table, at(0))
    if kind == "insert":
        return Insert(table, at(0), new)
    if kind == "delete":
        return Delete(table, at(0), old)
    # A missing column is an unchanged TOAST value.
    sent = {name: value for name, value in new.items() if rng.random() < 0.9 or not full}
    return Update(table, at(0), old if full or rng.random() < 0.5 else None, sent)


def route(router: EventRouter, fragment: TransactionFragment) -> tuple[RoutedFragment, ...]:
    """Route the fragment, removing every shape that the router refuses or that a row cannot enter, as capture does."""
    try:
        routed = router.route(fragment)
    except (ShapeError, DecodeError) as error:
        if error.shape_id is None:
            raise
        router.remove_shape(error.shape_id)
        routed = route(router, fragment)
    router.check_invariants()
    return routed


@given(RANDOMS)
def test_the_index_finds_what_a_plain_scan_finds(rng: Random) -> None:
    """For any conditions and changes, while shapes are added and removed and tables are altered."""
    tables = rng.choice([[FULL_ORDERS, PART], [ORDERS, PART], [FULL_ORDERS, FULL_ORDERS, PART, ALTERED_ORDERS]])
    indexed, plain = EventRouter(by_oid=True), PlainRouter(by_oid=True)
    added = 0
    for lsn in range(LSN, LSN + 10 * rng.randint(2, 6), 10):
        changes = [random_change(rng, rng.choice(tables)) for _ in range(rng.randint(0, 8))]
        for fragment in transaction(changes, lsn, [rng.randint(1, 4), rng.randint(1, 4)]):
            for _ in range(rng.choice([0, 1, 5])):
                added += 1
                definition, starts_after = random_definition(rng, added), rng.choice([-1, -1, lsn, lsn + 15])
                oid = PART.relation_id if definition.table == PART.table else FULL_ORDERS.relation_id
                indexed.add_shape(definition, starts_after, oid)
                plain.add_shape(definition, starts_after, oid)
            for shape_id in rng.sample(sorted(indexed.shape_ids), k=len(indexed.shape_ids) // 5):
                assert indexed.remove_shape(shape_id) == plain.remove_shape(shape_id)
            if rng.random() < 0.3:
                for router in (indexed, plain):
                    change = (
                        router.partitions.discard
                        if router.partitions.of(FULL_ORDERS.relation_id)
                        else router.partitions.add
                    )
                    change(FULL_ORDERS.relation_id, PART.relation_id)
            assert route(indexed, fragment) == route(plain, fragment)
            assert indexed.shape_ids == plain.shape_ids


ALL_TYPES = where_table.relation()
KEYS = ("i8", "n", "f8", "t", "ts")
KEYED = replace(
    ALL_TYPES,
    replica_identity="default",
    columns=tuple(replace(column, is_key=column.name in KEYS) for column in ALL_TYPES.columns),
)


def random_typed_change(rng: Random, table: Relation) -> Change:
    """A change of the table with all types; some columns are unchanged TOAST, old rows may be the key alone."""
    old, new = random_ranges.random_row(rng, nulls=0.05), random_ranges.random_row(rng, nulls=0.05)
    identity = {column.name for column in table.columns if column.is_key} if table is KEYED else old.keys()
    key_only = {name: value for name, value in old.items() if name in identity}
    kind = rng.choice(["insert", "insert", "delete", "update", "update", "update", "moved"])
    if kind == "insert":
        return Insert(table, at(0), new)
    if kind == "delete":
        return Delete(table, at(0), key_only)
    unsent = {name for name in new if rng.random() < 0.2 and (table is ALL_TYPES or name not in KEYS)}
    sent = {name: value for name, value in new.items() if name not in unsent}
    return Update(table, at(0), None if table is KEYED and kind == "update" else key_only, sent)


def random_range_shapes(rng: Random, table: Relation, count: int, first: int) -> list[ShapeDefinition]:
    """Few columns, so that many shapes share a lookup; under a key, mostly its columns, as others are refused."""
    known = [name for name in KEYS if name in random_ranges.VALUES] if table is KEYED else list(random_ranges.VALUES)
    columns = rng.sample(known, k=rng.randint(1, 3))
    shapes: list[ShapeDefinition] = []
    while len(shapes) < count:
        where = random_ranges.random_condition(rng, columns)
        try:
            shapes.append(ShapeDefinition(f"shape-{first + len(shapes)}", table.table, where=where))
            Shape(shapes[-1])
        except ShapeError:
            shapes.pop()
    return shapes


@given(RANDOMS)
def test_ranges_and_prefixes_find_what_a_plain_scan_finds(rng: Random) -> None:
    """For every type, with NULL, NaN, key-only old rows and unchanged TOAST columns, while shapes come and go."""
    table = rng.choice([ALL_TYPES, ALL_TYPES, KEYED])
    indexed, plain = EventRouter(), PlainRouter()
    added = 0
    with mock.patch.object(range_index, "_MAX_RECENT", rng.choice([0, 2, 16])):
        for lsn in range(LSN, LSN + 30, 10):
            for definition in random_range_shapes(rng, table, rng.choice([0, 1, 4, 12]), added):
                added += 1
                for router in (indexed, plain):
                    router.add_shape(definition)
            for shape_id in rng.sample(sorted(indexed.shape_ids), k=len(indexed.shape_ids) // 4):
                assert indexed.remove_shape(shape_id) == plain.remove_shape(shape_id)
            changes = [random_typed_change(rng, table) for _ in range(rng.randint(1, 8))]
            (fragment,) = transaction(changes, lsn)
            assert route(indexed, fragment) == route(plain, fragment)
            assert indexed.shape_ids == plain.shape_ids
        for shape_id in indexed.shape_ids:
            indexed.remove_shape(shape_id)
            indexed.check_invariants()


# Cost: how many conditions are evaluated


def users(shape_id: str, where: str | None) -> ShapeDefinition:
    return ShapeDefinition(shape_id, ("public", "users"), where=where, primary_key=("id",))


def by_region(count: int) -> list[ShapeDefinition]:
    return [users(f"shape-{number}", f"region = 'r{number}'") for number in range(count)]


def insert(region: str | None, key: str = "1", table: Relation = FULL_USERS) -> Insert:
    return Insert(table, at(0), {"id": key, "region": region, "bio": None})


def update(old: str, new: str) -> Update:
    return Update(FULL_USERS, at(0), insert(old).new, insert(new).new)


def gets(router: EventRouter, *changes: Change, lsn: int = LSN) -> dict[str, list[str]]:
    """The operations that each shape gets from one transaction."""
    (routed,) = (router.route(fragment) for fragment in transaction(changes, lsn))
    router.check_invariants()
    return {part.shape_id: [item.operation for item in part.items] for part in routed}


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the shapes whose condition was evaluated, once for each time."""
    ids: list[str] = []
    original = BoundShape.filter

    def watched(bound: BoundShape, change: Change) -> Change | None:
        ids.append(bound.definition.id)
        return original(bound, change)

    monkeypatch.setattr(BoundShape, "filter", watched)
    return ids


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the shapes that were bound to a relation, once for each time."""
    ids: list[str] = []
    original = Shape.bind

    def watched(shape: Shape, relation: Relation) -> BoundShape:
        ids.append(shape.definition.id)
        return original(shape, relation)

    monkeypatch.setattr(Shape, "bind", watched)
    return ids


def test_a_change_evaluates_only_the_shapes_that_its_values_find(evaluated: list[str]) -> None:
    """One of a thousand shapes, by its value; an update evaluates those for its old and its new value once."""
    router = EventRouter([*by_region(1000), users("all", None), users("some", "NOT id <= 5")])
    assert gets(router, insert("r7")).keys() == {"shape-7", "all"}
    assert sorted(evaluated) == ["all", "shape-7", "some"]
    evaluated.clear()
    moved = gets(router, update("r1", "r2"), update("r3", "r3"), lsn=LSN + 10)
    assert moved == {"shape-1": ["delete"], "shape-2": ["insert"], "shape-3": ["update"], "all": ["update"] * 2}
    assert sorted(evaluated) == ["all", "all", "shape-1", "shape-2", "shape-3", "some", "some"]
    evaluated.clear()
    assert gets(router, insert(None, "9"), lsn=LSN + 20) == {"all": ["insert"], "some": ["insert"]}
    assert sorted(evaluated) == ["all", "some"]
    evaluated.clear()
    unchanged_toast = Update(FULL_USERS, at(0), insert("r4").new, {"id": "1", "bio": "new"})
    assert gets(router, unchanged_toast, lsn=LSN + 30).keys() == {"shape-4", "all"}
    assert sorted(evaluated) == ["all", "shape-4", "some"]


def test_shapes_that_require_several_columns_are_found_by_all_of_them(evaluated: list[str]) -> None:
    """For a row, the other shapes of its region cost nothing if they require another id."""
    router = EventRouter([users(f"shape-{n}", f"region IN ('eu', 'us') AND id = {n}") for n in range(1000)])
    assert gets(router, insert("us", "7"), insert("no", "8")) == {"shape-7": ["insert"]}
    assert evaluated == ["shape-7"]


def test_a_change_evaluates_only_the_shapes_whose_range_it_lies_in(evaluated: list[str]) -> None:
    """One of a thousand side by side; with NULL none; an update, those of its old and its new value."""
    router = EventRouter([users(f"shape-{n}", f"id BETWEEN {10 * n} AND {10 * n + 9}") for n in range(1000)])
    assert gets(router, insert("eu", "75")) == {"shape-7": ["insert"]}
    assert gets(router, insert("eu", "-1"), insert("eu", "10000"), lsn=LSN + 10) == {}
    assert evaluated == ["shape-7"]
    evaluated.clear()
    moved = Update(FULL_USERS, at(0), insert("eu", "19").new, insert("eu", "20").new)
    assert gets(router, moved, lsn=LSN + 20) == {"shape-1": ["delete"], "shape-2": ["insert"]}
    assert sorted(evaluated) == ["shape-1", "shape-2"]


def test_a_change_evaluates_only_the_shapes_whose_prefix_it_starts_with(evaluated: list[str]) -> None:
    """Prefixes of different lengths; case counts."""
    router = EventRouter([users(f"shape-{n}", f"region LIKE 'r{n}-%'") for n in range(1000)])
    router.add_shape(users("all", "region LIKE 'r%'"))
    assert gets(router, insert("r7-north"), insert("R8-"), insert(None)).keys() == {"all", "shape-7"}
    assert sorted(evaluated) == ["all", "shape-7"]


def test_shapes_that_require_a_value_and_a_range_are_found_by_both(evaluated: list[str]) -> None:
    """In each region there are a hundred ranges of ids, and a row evaluates one of one region."""
    shapes = [
        users(f"r{n}-{start}", f"region IN ('r{n}', 's{n}') AND id >= {start} AND id < {start + 10}")
        for n in range(10)
        for start in range(5, 1000, 10)
    ]
    router = EventRouter(shapes)
    assert gets(router, insert("s3", "77"), insert("s3", "1"), insert("t3", "77")) == {"r3-75": ["insert"]}
    assert evaluated == ["r3-75"]


def test_of_several_ranges_one_with_two_ends_is_searched(evaluated: list[str]) -> None:
    """All rows of a table may lie above one number; few lie between two."""
    router = EventRouter([users(f"shape-{n}", f"bio LIKE 'b{n}-%' AND id > 0") for n in range(100)])
    row = {"id": "5", "region": None, "bio": "b7-"}
    assert gets(router, Insert(FULL_USERS, at(0), row)) == {"shape-7": ["insert"]}
    assert evaluated == ["shape-7"]


def test_a_list_too_long_for_the_index_is_evaluated(evaluated: list[str]) -> None:
    """A shape has at most a hundred keys in the index; beside a long list, a shorter one is still used."""
    listed = f"id IN ({', '.join(map(str, range(101)))})"
    router = EventRouter([users("long", listed), users("both", f"{listed} AND region = 'eu'")])
    assert gets(router, insert("us", "100"), insert("no", "101")) == {"long": ["insert"]}
    assert evaluated == ["long", "long"]


def test_truncate_reaches_the_shapes_that_no_row_would_find() -> None:
    """Even a shape that can have no rows at all."""
    router = EventRouter([*by_region(3), users("none", "region = 'eu' AND region = 'us'"), users("null", "id = NULL")])
    router.add_shape(users("empty", "id BETWEEN 9 AND 1"))
    reached = gets(router, Truncate(FULL_USERS, at(0)))
    assert reached.pop("empty") == ["truncate"]
    assert reached == {f"shape-{n}": ["truncate"] for n in range(3)} | {"none": ["truncate"], "null": ["truncate"]}


def test_lookups_compare_values_and_not_their_texts() -> None:
    """A number, a character(n) or a timestamp can be written in several ways."""
    table = Relation(1, "public", "users", "full", (Column("id", 1700), Column("region", 1042), Column("at", 1184)))
    wheres = ["id = '01.0'", "region = 'eu   '", "at = '2026-01-01 01:00:00+01'"]
    router = EventRouter([users(f"shape-{number}", where) for number, where in enumerate(wheres)])
    row = {"id": "1.00", "region": "eu ", "at": "2026-01-01 00:00:00+00"}
    assert len(gets(router, Insert(table, at(0), row))) == 3


# Errors are those of a scan


def test_a_shape_is_refused_when_its_table_becomes_known_though_no_row_matches_it() -> None:
    """Even if another with the same condition is kept; the router continues without it."""
    ok = users("ok", "id = '2'")
    refused = {
        "column": (users("column", "nickname = 'x'"), 'where reads column "nickname"'),
        "literal": (users("literal", "id = 'two'"), 'the literal "two"'),
        "columns": (replace(ok, id="columns", columns=("id", "nickname")), "columns names nickname"),
        "key": (replace(ok, id="key", primary_key=("nickname",)), "primary_key names nickname"),
    }
    router = EventRouter([ok, *(definition for definition, _ in refused.values())])
    for shape_id, (_, message) in refused.items():
        with pytest.raises(ShapeError, match=message) as raised:
            gets(router, insert("eu"))
        assert raised.value.shape_id == shape_id
        router.check_invariants()
        router.remove_shape(shape_id)
    assert gets(router, insert("eu", "2")) == {"ok": ["insert"]}


def test_a_shape_is_not_refused_before_it_starts() -> None:
    """It was added after the table got a new column, and transactions from before that are resent."""
    router = EventRouter([users("old", "region = 'eu'")])
    router.add_shape(users("new", "age = '7'"), starts_after=LSN)
    assert gets(router, insert("eu")) == {"old": ["insert"]}
    wider = relation("users", "id region bio age", "full")
    row = {"id": "1", "region": "us", "bio": None, "age": "7"}
    assert gets(router, Insert(wider, at(0), row), lsn=LSN + 10) == {"new": ["insert"]}
    assert gets(router, insert("eu"), lsn=LSN) == {"old": ["insert"]}
    with pytest.raises(ShapeError, match="age") as raised:
        gets(router, insert("eu"), lsn=LSN + 10)
    assert raised.value.shape_id == "new"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Update(USERS, at(0), None, {"region": "eu", "bio": None}), 'column "id" is absent'),
        (insert("eu", "one", USERS), "a value that cannot be read as bigint"),
        (Update(KEYLESS_USERS, at(0), None, insert("eu", "5").new), "the table has no replica identity"),
    ],
    ids=["a key left out as unchanged TOAST", "a value of another type", "an update without a replica identity"],
)
def test_a_row_that_cannot_be_looked_up_is_an_error_of_a_shape_that_needs_it(change: Change, message: str) -> None:
    """The row is not silently left out of every shape."""
    router = EventRouter([users("one", "id = 1"), users("two", "id = 2")])
    with pytest.raises(DecodeError, match=message) as raised:
        gets(router, change)
    assert raised.value.shape_id == "one"
    router = EventRouter([users("low", "id <= 1"), users("high", "id BETWEEN 2 AND 5")])
    with pytest.raises(DecodeError, match=message) as raised:
        gets(router, change)
    assert raised.value.shape_id == "low"


# Space and time of shapes that are not evaluated


def test_a_table_binds_one_shape_of_each_form_and_those_that_are_found(bound: list[str]) -> None:
    """They are bound again only if the table was altered, not if a reconnect sends an equal relation."""
    router = EventRouter(by_region(1000))
    gets(router, insert("r5"), insert("r5"))
    assert bound == ["shape-0", "shape-5"]
    bound.clear()
    same = relation("users", "id region bio", "full")
    gets(router, insert("r5", table=same), insert("r6", table=same), lsn=LSN + 10)
    assert bound == ["shape-6"]
    bound.clear()
    gets(router, insert("r7", table=relation("users", "id region bio age", "full")), lsn=LSN + 20)
    assert bound == ["shape-0", "shape-7"]


def test_ranges_of_one_form_are_bound_as_equalities_are(bound: list[str]) -> None:
    """One shape of the form, and those that are found; a literal without a value is still refused."""
    router = EventRouter([users(f"shape-{n}", f"id BETWEEN {10 * n} AND {10 * n + 9}") for n in range(1000)])
    gets(router, insert("eu", "75"))
    assert bound == ["shape-0", "shape-7"]
    router.add_shape(users("kept", "id BETWEEN 99999999999999 AND '9'"), starts_after=0)
    router.add_shape(users("refused", "id BETWEEN 99999999999999 AND '99999999999999999999'"), starts_after=0)
    with pytest.raises(ShapeError, match="the literal") as raised:
        gets(router, insert("eu", "75"), lsn=LSN + 10)
    assert raised.value.shape_id == "refused"


def test_removed_shapes_leave_nothing_behind() -> None:
    """Both before their table is known and afterwards; ``check_invariants`` refuses empty keys."""
    index = ShapeIndex(FULL_USERS)
    shapes = [Shape(users(f"shape-{n}", where)) for n, where in enumerate([None, "id = 1", "id = 1", "region = 'eu'"])]
    shapes += [Shape(users(f"range-{n}", f"id < {9 + n}")) for n in range(20)]
    for known in (False, True, True):
        for shape in shapes:
            index.add(shape, -1)
        assert len(index.candidates(insert("eu"), LSN)) == 24 if known else index
        index.check_invariants()
        for shape in shapes:
            index.remove(shape.definition.id)
            index.check_invariants()
        assert len(index) == len(index.candidates(insert("eu"), LSN)) == 0
