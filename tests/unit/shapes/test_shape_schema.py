"""The digest of a shape's columns and types: what changes it, and what does not."""

from dataclasses import replace
from typing import Any, Final

import pytest

from flushtracker.shapes.definition import InnerTable, ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.shape_schema import shape_schema
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding

MOOD, MOODS, EMAIL, EMAILS, PAIR = 16_400, 16_401, 16_402, 16_403, 16_404
TYPES: Final = (
    TypeBinding(MOOD, "public", "mood", "enum", labels=(EnumLabel(1, "ok", 9), EnumLabel(2, "sad", 9))),
    TypeBinding(MOODS, "public", "_mood", "array", (MOOD,)),
    TypeBinding(EMAIL, "public", "email", "domain", (1043,)),
    TypeBinding(EMAILS, "public", "_email", "array", (EMAIL,)),
    TypeBinding(PAIR, "public", "pair", "composite", (23, MOOD), attributes=2),
)
NAMES: Final = {"id": 23, "name": 1043, "moods": MOODS, "mail": EMAIL, "emails": EMAILS, "pair": PAIR, "note": 25}
TABLE: Final = TableBinding(
    7,
    ("public", "users"),
    (KeyBinding(1, ("id",)),),
    tuple(ColumnBinding(number, name, oid, -1, 9) for number, (name, oid) in enumerate(NAMES.items(), start=1)),
    types=TYPES,
)
ALL: Final = ShapeDefinition("users", TABLE.table)
SOME: Final = ShapeDefinition("users", TABLE.table, columns=("moods",), primary_key=("id",))


def altered(column: str, **facts: Any) -> TableBinding:
    """The table with one column altered."""
    return replace(TABLE, columns=tuple(replace(c, **facts) if c.name == column else c for c in TABLE.columns))


def retyped(oid: int, **facts: Any) -> TableBinding:
    """The table with one user type altered."""
    return replace(TABLE, types=tuple(replace(each, **facts) if each.oid == oid else each for each in TYPES))


def test_digest_is_the_same_in_every_process_and_release() -> None:
    """Capture and servers of different releases compare it."""
    assert (shape_schema(ALL, TABLE), shape_schema(SOME, TABLE)) == ("065dbd370c5bfbb3", "6b663b31ad908f63")


CHANGES: Final = {
    "column added": replace(TABLE, columns=(*TABLE.columns, ColumnBinding(8, "n", 23, -1, 10))),
    "column dropped": replace(TABLE, columns=TABLE.columns[:-1]),
    "column renamed": altered("note", name="notes"),
    "columns reordered": replace(TABLE, columns=(*TABLE.columns[:-2], *reversed(TABLE.columns[-2:]))),
    "type changed": altered("note", type_oid=17),
    "modifier changed": altered("name", type_modifier=24),
    "key changed": replace(TABLE, keys=(KeyBinding(2, ("id", "name")),)),
    "table renamed": replace(TABLE, table=("public", "people")),
    "table in another schema": replace(TABLE, table=("app", "users")),
    "enum with another label": retyped(MOOD, labels=(*TYPES[0].labels, EnumLabel(3, "new", 10))),
    "label renamed": retyped(MOOD, labels=(TYPES[0].labels[0], EnumLabel(2, "blue", 10))),
    "array of another type": retyped(MOODS, parts=(EMAIL,)),
    "another base of a domain": retyped(EMAIL, parts=(25,)),
    "domain renamed": retyped(EMAIL, name="address"),
    "type in another schema": retyped(EMAIL, schema="app"),
    "attribute of a composite type changed": retyped(PAIR, parts=(20, MOOD)),
    "attribute of a composite type dropped and added": retyped(PAIR, attributes=3),
    "domain that became another kind": retyped(EMAIL, kind="range"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_schema_has_another_digest(change: str) -> None:
    """A change that a client could see in the shape's rows, or in what it is told of them."""
    assert shape_schema(ALL, CHANGES[change]) not in {shape_schema(ALL, TABLE), None}


def test_no_two_of_these_schemas_have_the_same_digest() -> None:
    """No part of what is digested stands for another one."""
    assert len({shape_schema(ALL, table) for table in CHANGES.values()}) == len(CHANGES)


SEEN_BY_SOME: Final = {
    *("key changed", "table renamed", "table in another schema", "enum with another label", "label renamed"),
    "array of another type",
}


@pytest.mark.parametrize("change", CHANGES)
def test_columns_that_a_shape_does_not_have_do_not_matter(change: str) -> None:
    """So its tail goes on when others are altered; its key belongs to it."""
    is_other = shape_schema(SOME, CHANGES[change]) != shape_schema(SOME, TABLE)
    assert is_other == (change in SEEN_BY_SOME)


SAME: Final = {
    "default of a column": altered("note", version=10, altered_before=900),
    "rows rewritten": replace(TABLE, storage=8, toast=9),
    "partition": replace(TABLE, partitions=(PartitionBinding(8, ("public", "p"), 5, "/9"),)),
    "published by another entry": replace(TABLE, published_by=("table 8",)),
    "type that no column has": replace(TABLE, types=(*TYPES, TypeBinding(16_500, "public", "t", "domain", (23,)))),
    "another key that is not the first": replace(TABLE, keys=(*TABLE.keys, KeyBinding(2, ("name",)))),
    "collation": altered("note", is_deterministic=False),
}


@pytest.mark.parametrize("change", SAME)
def test_what_no_client_sees_does_not_matter(change: str) -> None:
    """Otherwise each new partition would end all tails of its table for a while."""
    assert shape_schema(ALL, SAME[change]) == shape_schema(ALL, TABLE)


def test_definition_decides_columns_and_key() -> None:
    """Two shapes on a table have the same digest if their rows have the same columns and keys."""
    assert shape_schema(replace(ALL, id="other", where="id > 1"), TABLE) == shape_schema(ALL, TABLE)
    assert shape_schema(replace(ALL, primary_key=("id", "name")), TABLE) != shape_schema(ALL, TABLE)
    assert shape_schema(replace(SOME, columns=("moods", "id")), TABLE) == shape_schema(SOME, TABLE)
    assert shape_schema(replace(SOME, columns=("pair",)), TABLE) != shape_schema(SOME, TABLE)


def test_shape_with_subqueries_has_none() -> None:
    """Its changes are those of several tables."""
    assert shape_schema(replace(ALL, inner_tables=(InnerTable(("public", "t"), 8, ("id",)),)), TABLE) is None
