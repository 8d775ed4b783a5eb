"""Entries of the registry, one of each kind."""

from dataclasses import replace

from flushtracker.events.registry_events import (
    PartitionEntry,
    ShapeEntry,
    TableEntry,
)
from flushtracker.shapes.definition import FlushPolicy, ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.shapes.type_binding import EnumLabel, TypeBinding
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
        keys_have_partitions=True,
        snapshot=True,
    ),
    16400,
    LogOffset(100, 0),
    LogOffset(200, 3),
    "column region is gone",
    starts_visible=True,
    evicted_at_ms=1_700_000_000_000,
)
AGAIN = replace(FULL, definition=replace(FULL.definition, incarnation=3))
PLAIN = ShapeEntry("7/1/s", ShapeDefinition("users", ("public", "users"), snapshot=False), 1, LogOffset.before_all())
TABLE = TableEntry(
    "7/1/s",
    TableBinding(
        7,
        ("public", "t"),
        (KeyBinding(6, ("id",), 5, 700, 4, is_primary=True), KeyBinding(9, ("pair", "id"))),
        (
            ColumnBinding(1, "id", 16_400, -1, 700, altered_before=800),
            ColumnBinding(2, "pair", 16_402, -1, 700, fills_old_rows=True, is_deterministic=False),
            ColumnBinding(3, "name", 25, -1, 700, case_differences=("lower('I') is 'ı'",)),
            ColumnBinding(4, "code", 25, -1, 700, case_differences=(), is_bytewise=True),
        ),
        storage=4,
        attributes=4,
        case_differences=("upper('i') is 'İ'",),
        is_partitioned=True,
        published_by=("all tables",),
        types=(
            TypeBinding(16_400, "public", "mood", "enum", labels=(EnumLabel(1, "", 9), EnumLabel(2, "größe", 9))),
            TypeBinding(16_402, "public", "pair", "composite", parts=(23, 16_400), attributes=3),
        ),
        toast=11,
    ),
)
PARTITION = PartitionEntry("7/1/s", 7, PartitionBinding(9, ("public", "q"), 6, "/9", published_by=("table 8",)), 150)


SHAPE_ENTRY = (
    '{"type":"shape","v":1,"source":"s","shape_id":"a","definition":{"table":["public","t"],"columns":["id"],'
    '"where":"id > 1","replica":"full","primary_key":["id"],"partitions":[["public","p"]],"depends_on":["b"],'
    '"flush":{"bytes":1,"interval_ms":2,"chunk_bytes":3},"snapshot":true},"table_oid":16385,'
    '"starts_after":{"tx_offset":9,"op_offset":0},"removed_at":{"tx_offset":10,"op_offset":0},"ended_because":"gone",'
    '"starts_visible":true}'
)
