"""Keys, values and the splitting of updates."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flushtracker.errors import DecodeError
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import key_text
from flushtracker.shapes.log_items import log_items
from flushtracker.shapes.shape import BoundShape, Shape
from flushtracker.wal.changes import Change, Delete, Insert, LogItem, Relation, Truncate, Update
from tests.support.tables import EVENTS_P1, FULL_USERS, USERS, at, relation

KEY_7 = '"public"."users"/"7"'
KEY_8 = '"public"."users"/"8"'
OLD = {"id": "7", "region": "eu", "bio": "b"}
NEW = {"id": "7", "region": "us", "bio": "b"}
MOVED = {"id": "8", "region": "us", "bio": "b"}
INDEXED_USERS = relation("users", "id* region* bio", "index")
PART = {"id": "7", "region": "eu"}
"""The old row of an update if the identity is that index."""
TOAST = {"id": "7", "region": "us"}
"""The new row of an update that leaves ``bio``, a TOAST value, unchanged."""


def bound(table: Relation, replica: str = "default", columns: tuple[str, ...] | None = None) -> BoundShape:
    return Shape(
        ShapeDefinition(
            "users",
            ("public", "users"),
            columns=columns,
            replica="full" if replica == "full" else "default",
            primary_key=("id",),
        )
    ).bind(table)


def update(table: Relation, old: dict[str, str] | None, new: dict[str, str]) -> Update:
    return Update(table, at(4), old, new)


@pytest.mark.parametrize(
    ("replica", "change", "expected"),
    [
        ("default", Insert(USERS, at(4), OLD), LogItem(at(4), "insert", KEY_7, OLD)),
        ("full", Insert(USERS, at(4), OLD), LogItem(at(4), "insert", KEY_7, OLD)),
        ("default", Delete(FULL_USERS, at(4), OLD), LogItem(at(4), "delete", KEY_7, {"id": "7"})),
        ("full", Delete(FULL_USERS, at(4), OLD), LogItem(at(4), "delete", KEY_7, OLD)),
        ("full", Delete(USERS, at(4), {"id": "7"}), LogItem(at(4), "delete", KEY_7, {"id": "7"})),
        ("default", Truncate(USERS, at(4)), LogItem(at(4), "truncate")),
        ("full", Truncate(USERS, at(4)), LogItem(at(4), "truncate")),
        ("default", update(USERS, None, NEW), LogItem(at(4), "update", KEY_7, NEW)),
        ("full", update(USERS, None, NEW), LogItem(at(4), "update", KEY_7, NEW)),
        ("default", update(FULL_USERS, OLD, NEW), LogItem(at(4), "update", KEY_7, {"id": "7", "region": "us"})),
        ("full", update(FULL_USERS, OLD, NEW), LogItem(at(4), "update", KEY_7, NEW, {"region": "eu"})),
        ("default", update(FULL_USERS, OLD, OLD), LogItem(at(4), "update", KEY_7, {"id": "7"})),
        ("full", update(FULL_USERS, OLD, OLD), LogItem(at(4), "update", KEY_7, OLD, {})),
        ("default", update(USERS, None, TOAST), LogItem(at(4), "update", KEY_7, TOAST)),
        ("default", update(FULL_USERS, OLD, TOAST), LogItem(at(4), "update", KEY_7, TOAST)),
        ("full", update(FULL_USERS, OLD, TOAST), LogItem(at(4), "update", KEY_7, NEW, {"region": "eu"})),
        ("full", update(USERS, None, TOAST), LogItem(at(4), "update", KEY_7, TOAST)),
        ("full", update(INDEXED_USERS, PART, NEW), LogItem(at(4), "update", KEY_7, NEW, PART)),
        ("full", update(INDEXED_USERS, PART, OLD), LogItem(at(4), "update", KEY_7, OLD, PART)),
    ],
)
def test_an_item_has_the_values_that_its_replica_setting_asks_for(
    replica: str, change: Change, expected: LogItem
) -> None:
    """Default: the key and the changes; full: everything known. Only an old row may have unchanged TOAST columns.

    Old values have the key if they are the replica identity alone.
    """
    assert log_items(bound(change.relation, replica), change) == (expected,)


@pytest.mark.parametrize(
    ("replica", "change", "deleted", "inserted"),
    [
        ("default", update(USERS, {"id": "7"}, MOVED), {"id": "7"}, MOVED),
        ("full", update(USERS, {"id": "7"}, MOVED), {"id": "7"}, MOVED),
        ("default", update(FULL_USERS, OLD, MOVED), {"id": "7"}, MOVED),
        ("full", update(FULL_USERS, OLD, MOVED), OLD, MOVED),
        ("default", update(FULL_USERS, OLD, {"id": "8", "region": "us"}), {"id": "7"}, MOVED),
    ],
    ids=["key only", "key only, full", "FULL", "FULL, full", "TOAST, known"],
)
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert_one_operation_later(
    replica: str, change: Update, deleted: dict[str, str], inserted: dict[str, str]
) -> None:
    """The insert's unchanged TOAST columns come from the old row."""
    assert log_items(bound(change.relation, replica), change) == (
        LogItem(at(4), "delete", KEY_7, deleted),
        LogItem(at(5), "insert", KEY_8, inserted),
    )


def test_a_row_that_gets_another_key_without_its_large_value_is_refused() -> None:
    """Without the old row the insert would lack the value permanently; the message says what to do."""
    change = update(USERS, {"id": "7"}, {"id": "8", "region": "us"})
    with pytest.raises(DecodeError, match=r"does not include bio, a large value .* set REPLICA IDENTITY FULL"):
        log_items(bound(USERS, "default"), change)


def test_an_old_key_that_has_not_changed_splits_nothing() -> None:
    """PostgreSQL also sends it when another column of the identity changed, or when the identity has a TOAST value."""
    items = log_items(bound(USERS), update(USERS, {"id": "7"}, NEW))
    assert items == (LogItem(at(4), "update", KEY_7, NEW),)


def test_items_carry_only_the_chosen_columns_and_the_key() -> None:
    """In the value, in the old value, and in both halves of a split."""
    full = bound(FULL_USERS, "full", columns=("region",))
    assert log_items(full, update(FULL_USERS, {**OLD, "bio": "a"}, NEW)) == (
        LogItem(at(4), "update", KEY_7, {"id": "7", "region": "us"}, {"region": "eu"}),
    )
    assert log_items(full, update(FULL_USERS, OLD, MOVED)) == (
        LogItem(at(4), "delete", KEY_7, {"id": "7", "region": "eu"}),
        LogItem(at(5), "insert", KEY_8, {"id": "8", "region": "us"}),
    )


def test_an_update_of_a_table_without_a_key_is_always_split() -> None:
    """Every column is part of the key, so any change changes the key; an update without a change stays one item."""
    shape = Shape(ShapeDefinition("users", ("public", "users"))).bind(FULL_USERS)
    assert [item.operation for item in log_items(shape, update(FULL_USERS, OLD, NEW))] == ["delete", "insert"]
    assert [item.operation for item in log_items(shape, update(FULL_USERS, OLD, OLD))] == ["update"]


def test_rows_of_a_partition_have_keys_of_the_whole_table() -> None:
    """So a row keeps its key when it moves to another partition."""
    definition = ShapeDefinition(
        "events", ("public", "events"), primary_key=("id", "day"), partitions=(EVENTS_P1.table,)
    )
    change = Insert(EVENTS_P1, at(0), {"id": "1", "day": "12", "body": "x"})
    assert [item.key for item in log_items(Shape(definition).bind(EVENTS_P1), change)] == ['"public"."events"/"1"/"12"']


def test_a_key_column_that_is_unchanged_toast_is_taken_from_the_old_row() -> None:
    """The item's value contains it, like every key column."""
    table = relation("users", "id* name* region")
    shape = Shape(ShapeDefinition("users", ("public", "users"))).bind(table)
    change = Update(table, at(0), {"id": "7", "name": "long"}, {"id": "7", "region": "us"})
    expected = {"id": "7", "name": "long", "region": "us"}
    assert log_items(shape, change) == (LogItem(at(0), "update", '"public"."users"/"7"/"long"', expected),)


def test_a_row_without_its_key_is_an_error_with_its_position() -> None:
    """An item without its key could overwrite another row."""
    with pytest.raises(DecodeError, match=r"shape 'users': the update of public\.users at 0/3E8\+4 .* key column id"):
        log_items(bound(USERS), update(USERS, None, {"region": "us"}))


@pytest.mark.parametrize(
    ("table", "values", "expected"),
    [
        (("public", "users"), ["7"], '"public"."users"/"7"'),
        (("public", "users"), ["user/123", "org/456"], '"public"."users"/"user//123"/"org//456"'),
        (("public", "order_items"), ['a"/"b'], '"public"."order_items"/"a"//"b"'),
        (("public", "and/or"), ["/", "//"], '"public"."and//or"/"//"/"////"'),
        (("public", "audit"), [None, "", "_"], '"public"."audit"/_/""/"_"'),
        (('a"."b', "c"), [], '"a"".""b"."c"'),
    ],
)
def test_a_key_quotes_every_part_and_shows_null_as_a_bare_underscore(
    table: tuple[str, str], values: list[str | None], expected: str
) -> None:
    """Inner slashes are doubled, and in the table's names also double quotes, as in SQL."""
    assert key_text(table, values) == expected


_PARTS = st.text(alphabet='a"/_.', max_size=4)
_ROW = st.tuples(st.tuples(_PARTS, _PARTS), st.lists(st.none() | _PARTS, max_size=3))


def read_key(text: str) -> tuple[tuple[str, str], list[str | None]]:
    """Invert ``key_text``: a text that can be read in only one way was written for only one row."""
    table, *parts = (part.replace("//", "/") for part in re.split("(?<!/)/(?!/)", text))
    names = re.fullmatch('"((?:[^"]|"")*)"[.]"((?:[^"]|"")*)"', table)
    assert names is not None
    schema, name = (quoted.replace('""', '"') for quoted in names.groups())
    assert all(part == "_" or (part[0], part[-1]) == ('"', '"') for part in parts)
    return (schema, name), [None if part == "_" else part[1:-1] for part in parts]


@given(row=_ROW)
def test_keys_of_different_rows_differ(row: tuple[tuple[str, str], list[str | None]]) -> None:
    """The key can be read back, whatever quotes, slashes, dots and underscores its parts contain."""
    assert read_key(key_text(*row)) == row
