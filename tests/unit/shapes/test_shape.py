"""Which rows are in a shape, what a change becomes for it, and which definitions are refused."""

import pytest

from flushtracker.errors import DecodeError, ShapeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.partition_map import PartitionMap
from flushtracker.shapes.routed_transaction import Truncation, truncated
from flushtracker.shapes.shape import Shape
from flushtracker.wal.changes import Change, Column, Delete, Insert, Relation, Row, Truncate, Update
from tests.support.tables import (
    EVENTS_P0,
    EVENTS_P1,
    FULL_USERS,
    KEYLESS_USERS,
    TEXT,
    USERS,
    at,
    relation,
)

EU = "region = 'eu'"
EVENTS = ShapeDefinition("events", ("public", "events"), partitions=(("public", "events_p0"), ("public", "events_p1")))


def users(
    where: str | None = None,
    columns: tuple[str, ...] | None = None,
    primary_key: tuple[str, ...] | None = None,
) -> Shape:
    return Shape(ShapeDefinition("eu", ("public", "users"), columns=columns, where=where, primary_key=primary_key))


def row(key: str, region: str | None = "eu", bio: str | None = "b") -> Row:
    return {"id": key, "region": region, "bio": bio}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (row("1"), row("1", bio="c"), Update(FULL_USERS, at(4), row("1"), row("1", bio="c"))),
        (row("1", "us"), row("1"), Insert(FULL_USERS, at(4), row("1"))),
        (row("1"), row("1", "us"), Delete(FULL_USERS, at(4), row("1"))),
        (row("1", "us"), row("1", "ap"), None),
        (row("1", None), row("1"), Insert(FULL_USERS, at(4), row("1"))),
        (row("1"), row("1", None), Delete(FULL_USERS, at(4), row("1"))),
        (row("1"), row("2", "us"), Delete(FULL_USERS, at(4), row("1"))),
        (row("1", "us"), row("2"), Insert(FULL_USERS, at(4), row("2"))),
    ],
    ids=[
        *("stays in", "moves in", "moves out", "stays out", "from NULL", "to NULL", "out with its key"),
        "in with its key",
    ],
)
def test_an_update_is_filtered_by_its_old_and_its_new_row(old: Row, new: Row, expected: Change | None) -> None:
    """Both in: update; only the new: insert; only the old: delete; neither: nothing. Unknown is not in."""
    assert users(EU).bind(FULL_USERS).filter(Update(FULL_USERS, at(4), old, new)) == expected


def test_an_unchanged_toast_column_is_filtered_by_its_old_value() -> None:
    """The server leaves it out of the new row; under FULL the old row has it."""
    shape = users("bio LIKE 'long%'").bind(FULL_USERS)
    update = Update(FULL_USERS, at(0), row("1", "us", "long text"), {"id": "1", "region": "eu"})
    assert shape.filter(update) is update


def test_an_update_that_moves_in_gets_its_unchanged_toast_columns_from_the_old_row() -> None:
    """For the shape it is a new row, so it is filled in under FULL; with a key-only old row it is refused."""
    moved = Update(FULL_USERS, at(0), row("1", "us", "long"), {"id": "1", "region": "eu"})
    assert users(EU).bind(FULL_USERS).filter(moved) == Insert(FULL_USERS, at(0), row("1", "eu", "long"))
    moved = Update(USERS, at(0), {"id": "500"}, {"id": "5", "region": "eu"})
    with pytest.raises(DecodeError, match="does not include bio, a large value that it left unchanged"):
        users("id < 100").bind(USERS).filter(moved)


def test_a_key_column_that_is_unchanged_toast_is_filtered_by_the_old_row() -> None:
    """PostgreSQL then sends the old key although it has not changed."""
    table = relation("users", "name* region")
    shape = users("name LIKE 'x%'").bind(table)
    update = Update(table, at(0), {"name": "xx"}, {"region": "us"})
    assert shape.filter(update) is update


def test_a_key_column_that_no_row_has_is_an_error_with_its_position() -> None:
    """It is neither guessed nor skipped: the shape would silently lack a change."""
    table = relation("users", "name* region")
    with pytest.raises(DecodeError, match=r"shape 'eu': the update of public\.users at 0/3E8\+6: .*name"):
        users("name LIKE 'x%'").bind(table).filter(Update(table, at(6), None, {"region": "us"}))


def test_a_malformed_value_is_an_error_with_its_position_and_without_the_value() -> None:
    """Messages never show row values."""
    with pytest.raises(DecodeError, match=r"shape 'eu': the insert of public\.users at 0/3E8\+2: ") as caught:
        users("id < 100").bind(USERS).filter(Insert(USERS, at(2), row("secret")))
    assert "secret" not in str(caught.value)


def test_a_where_on_other_columns_than_the_key_is_refused_without_full() -> None:
    """The message names the shape, the table and the columns, and says what to do.

    An insert has no old row, so it is judged all the same.
    """
    shape = users("region = 'eu' AND bio IS NOT NULL AND id < 5")
    (lack,) = shape.identity_lacks(USERS)
    expected = (
        "shape 'eu' on public.users: where reads bio, region, but old rows contain only id; "
        "flushtracker check --connection prints the statement that makes it enough, or filter on those only"
    )
    assert str(lack.error(shape.definition, [USERS.table])) == expected
    bound = shape.bind(USERS)
    inserted = row("1", "eu", "x")
    assert bound.filter(Insert(USERS, at(2), inserted)) == Insert(USERS, at(2), inserted)
    assert bound.filter(Insert(USERS, at(2), row("1", "us", "x"))) is None
    assert bound.filter(Truncate(USERS, at(4))) == Truncate(USERS, at(4))
    for change in (
        Delete(USERS, at(2), {"id": "1"}),
        Update(USERS, at(2), None, inserted),
        Update(USERS, at(2), {"id": "9"}, row("1", "us", "x")),
    ):
        with pytest.raises(ShapeError) as caught:
            bound.filter(change)
        assert str(caught.value) == expected


def test_a_primary_key_that_old_rows_lack_is_refused() -> None:
    """Deletes would have no key. Of many partitions a few are named."""
    shape = users(primary_key=("region",))
    (lack,) = shape.identity_lacks(USERS)
    error = lack.error(shape.definition, [("public", f"p{n}") for n in range(9)], "STATEMENT")
    assert str(error) == (
        "shape 'eu' on public.users: primary_key names region, but old rows of public.p0, public.p1, public.p2 and 6 "
        "more contain only id; STATEMENT, or name those only"
    )


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            users(columns=("id", "age")),
            "shape 'eu' on public.users: columns names age, which the table lacks; it has id,",
        ),
        (
            users(primary_key=("uid",)),
            "shape 'eu' on public.users: primary_key names uid, which the table lacks; it has",
        ),
        (users("age > 5"), r"shape 'eu': public.users: where reads column \"age\", which the table does not have"),
    ],
)
def test_columns_that_the_table_lacks_are_refused(shape: Shape, message: str) -> None:
    """The message has the setting that names the column, and the columns that exist."""
    with pytest.raises(ShapeError, match=message):
        shape.bind(FULL_USERS)


def test_an_unsupported_where_is_refused_when_the_shape_is_defined() -> None:
    """Before any relation is known; the message names the shape."""
    with pytest.raises(ShapeError, match="shape 'eu': "):
        users("id IN (SELECT 1)")


@pytest.mark.parametrize(
    ("table", "primary_key", "expected"),
    [
        (USERS, None, ("id",)),
        (relation("users", "id* region* bio"), ("region",), ("region",)),
        (FULL_USERS, ("bio", "id"), ("bio", "id")),
        (FULL_USERS, None, ("id", "region", "bio")),
        (KEYLESS_USERS, None, ("id", "region", "bio")),
        (KEYLESS_USERS, ("id",), ("id",)),
    ],
    ids=["flagged", "part of the flagged", "named under FULL", "all under FULL", "no key", "named without key"],
)
def test_the_key_is_the_one_named_else_the_one_flagged_else_every_column(
    table: Relation, primary_key: tuple[str, ...] | None, expected: tuple[str, ...]
) -> None:
    """Under FULL every column is flagged, so unless a key is named, every column is the key."""
    assert users(primary_key=primary_key).bind(table).key_columns == expected


def test_a_table_that_sends_no_old_rows_may_be_filtered_by_any_column() -> None:
    """It has no replica identity, so the server allows neither updates nor deletes."""
    shape = users(EU).bind(KEYLESS_USERS)
    assert shape.filter(Insert(KEYLESS_USERS, at(0), row("1", "us"))) is None
    with pytest.raises(DecodeError, match="has no old row because the table has no replica identity"):
        shape.filter(Update(KEYLESS_USERS, at(0), None, row("1")))


def test_items_carry_the_chosen_columns_and_the_key_in_the_order_of_the_table() -> None:
    """The key is included even if it was not chosen."""
    assert users(columns=("bio",)).bind(USERS).columns == ("id", "bio")
    assert users().bind(USERS).columns == ("id", "region", "bio")


def test_a_shape_is_bound_to_its_table_as_it_is_now() -> None:
    """It gets the table's current columns, or is refused if it no longer fits."""
    shape = users("id < 100")
    assert shape.bind(USERS).columns == ("id", "region", "bio")
    assert shape.bind(relation("users", "id* region bio age")).columns == ("id", "region", "bio", "age")
    with pytest.raises(ShapeError, match=r'where reads column "id"'):
        shape.bind(relation("users", "uid* region"))


def test_an_altered_type_is_another_relation() -> None:
    """The comparison in ``where`` depends on it."""
    text_ids = Relation(1, "public", "users", "default", (Column("id", TEXT, is_key=True),))
    with pytest.raises(ShapeError, match="shape 'eu': "):
        users("id < 100").bind(text_ids)


def test_the_shape_of_a_partitioned_table_is_bound_to_each_partition_and_named_after_the_table() -> None:
    """A row has one key in all partitions, even if their columns are in different orders."""
    shape = Shape(EVENTS)
    other_order = relation("events_p1", "day* body id*")
    assert shape.tables == (("public", "events"), ("public", "events_p0"), ("public", "events_p1"))
    assert shape.bind(EVENTS_P0).key_columns == shape.bind(other_order).key_columns == ("day", "id")
    assert shape.bind(EVENTS_P0).key_prefix == shape.bind(other_order).key_prefix == '"public"."events"'


PARTITIONS = frozenset(EVENTS.partitions)
INSERT_P0 = Insert(EVENTS_P0, at(0), {"id": "1", "day": "2", "body": None})
TRUNCATE_P0, TRUNCATE_P1 = Truncate(EVENTS_P0, at(0)), Truncate(EVENTS_P1, at(0))
TRUNCATE_ROOT = Truncate(relation("events", "id* day* body"), at(0))


@pytest.mark.parametrize(
    ("changes", "effects"),
    [
        ([TRUNCATE_P0], [False]),
        ([TRUNCATE_P0, TRUNCATE_P0], [False, False]),
        ([TRUNCATE_P0, TRUNCATE_P1], [False, True]),
        ([TRUNCATE_P1, TRUNCATE_P0], [False, True]),
        ([TRUNCATE_P0, INSERT_P0, TRUNCATE_P1], [False, True, False]),
        ([TRUNCATE_P0, INSERT_P0, TRUNCATE_P1, TRUNCATE_P0], [False, True, False, True]),
        ([TRUNCATE_ROOT], [True]),
    ],
    ids=["one", "one twice", "all", "all, reversed", "refilled meanwhile", "refilled, then emptied", "the table"],
)
def test_a_truncate_counts_once_every_partition_is_empty(changes: list[Change], effects: list[bool]) -> None:
    """Emptying some partitions must not empty the shape: the rows of the others remain."""
    truncation = Truncation()
    found = []
    for change in changes:
        key = change.relation.table
        truncation, has_effect = truncated(truncation, change, key, None if key == EVENTS.table else PARTITIONS)
        found.append(has_effect)
    assert found == effects


@pytest.mark.parametrize(
    ("first_lsn", "has_effect"), [(at(0).tx_offset, False), (at(0).tx_offset + 1, True)], ids=["before", "later"]
)
def test_a_truncate_of_all_partitions_does_not_wait_for_one_that_joined_later(
    first_lsn: int,
    has_effect: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """It may be sent again when the table has more partitions than it had then."""
    partitions = PartitionMap()
    for partition, joined in ((EVENTS_P0, 0), (EVENTS_P1, first_lsn)):
        partitions.add(EVENTS.table, partition.table, joined)
    at_truncate = partitions.at(EVENTS.table, TRUNCATE_P0.offset.tx_offset)
    assert truncated(Truncation(), TRUNCATE_P0, EVENTS_P0.table, at_truncate)[1] is has_effect
