"""Registry entries: written and read without loss, and parsed strictly."""

import json
from typing import Any

import pytest

from flushtracker.errors import DecodeError
from flushtracker.events.registry_events import ShapeEntry, SourceEntry, parse_registry_entry
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.wal.log_offset import LogOffset

FULL = ShapeEntry(
    "7/1/s",
    ShapeDefinition(
        "users-eu",
        ("public", "Users"),
        columns=("id", "größe"),
        where="id < 5",
        replica="full",
        primary_key=("id",),
        partitions=(("public", "users_1"),),
        depends_on=("users",),
        flush=FlushPolicy(10, 20, 30),
        joined=((("public", "users_1"), 150),),
    ),
    16400,
    LogOffset(100, 0),
    LogOffset(200, 3),
    "column region is gone",
)
PLAIN = ShapeEntry("7/1/s", ShapeDefinition("users", ("public", "users")), 1, LogOffset.before_all())


@pytest.mark.parametrize("entry", [FULL, PLAIN, SourceEntry("7/1/s", LogOffset(99, 0))])
def test_an_entry_is_read_as_it_was_written(entry: ShapeEntry | SourceEntry) -> None:
    """Every field survives, also an absent one."""
    assert parse_registry_entry(entry.to_json()) == entry


def _changed(path: str, value: object) -> str:
    fields: dict[str, Any] = json.loads(FULL.to_json())
    *outer, last = path.split(".")
    target = fields
    for name in outer:
        target = target[name]
    target[last] = value
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("type", "index", "type is 'index', expected 'shape', 'table' or 'source'"),
        ("shape_id", "", "shape_id is empty"),
        ("table_oid", "x", "table_oid has type str, expected int"),
        ("definition.table", ["public"], "a table has 1 names, expected two: schema and table"),
        ("definition.columns", "id", "columns is not a list of strings"),
        ("definition.replica", "nothing", "replica is 'nothing'"),
        ("definition.flush.bytes", 0, "bytes is 0"),
        ("removed_at", {"tx_offset": 1}, "removed_at: op_offset is missing"),
        ("v", 2, "registry entry has v 2"),
    ],
)
def test_a_malformed_field_is_named(path: str, value: object, message: str) -> None:
    """A damaged entry must not be taken for another one."""
    with pytest.raises(DecodeError, match=message):
        parse_registry_entry(_changed(path, value))
