"""A sink's records with Connect's JSON converter and Debezium's ``ExtractNewRecordState``, in a JVM of their own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.jvm.jars import BROKER_JARS
from flushtracker.jvm.java import check_java
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.sinks.debezium_records import DebeziumRecords
from flushtracker.wal.changes import LogItem, Operation, Row
from flushtracker.wal.log_offset import LogOffset
from tests.support.connect_worker import CONNECT_JARS

PROGRAM: Final = Path(__file__).parents[1] / "support" / "FlatRecords.java"
TABLE: Final = TableBinding(
    16_400,
    ("public", "orders"),
    (KeyBinding(16_401, ("id",), 1, 1, 1, is_primary=True),),
    (ColumnBinding(1, "id", 23, -1, 1), ColumnBinding(2, "note", 25, -1, 1)),
)
SHAPE: Final = ShapeDefinition("orders", TABLE.table, replica="full", writer="kafka")
OLD: Final[Row] = {"id": "7", "note": None}
NEW: Final[Row] = {"id": "7", "note": "x"}
CHANGES: Final[tuple[tuple[Operation, Row | None, Row | None], ...]] = (
    ("insert", OLD, None),
    ("update", NEW, OLD),
    ("delete", NEW, None),
    ("truncate", None, None),
)


def _records() -> str:
    """The records of all changes, with schemas, as the program reads them."""
    records = DebeziumRecords(SHAPE, TABLE, name="app", database="shop", has_schemas=True)
    items = [
        LogItem(LogOffset(900, 2 * number), operation, "k" if value else None, value, old_value)
        for number, (operation, value, old_value) in enumerate(CHANGES)
    ]
    event = ShapeChangesEvent(
        *("7301/1/shapes", "orders", 742),
        follows=LogOffset(800, 0),
        last_log_offset=items[-1].offset,
        start=False,
        has_begin=True,
        commit=None,
        items=tuple(items),
    )
    lines = [record for item in items for record in records.of_changes(event, item, 0)]
    return "".join(f"{(line.key or b'').decode()}\t{(line.value or b'').decode()}\n" for line in lines)


@pytest.mark.parametrize("mode", ["tombstone", "rewrite", "rewrite-with-tombstone"])
def test_flat_records_are_what_the_page_says(mode: str) -> None:
    """An insert, an update, a delete with its tombstone, and a truncate."""
    classpath = os.pathsep.join(map(str, [*CONNECT_JARS.paths(), *BROKER_JARS.paths()]))
    command = [str(check_java().launcher), "-XX:TieredStopAtLevel=1", "-cp", classpath, str(PROGRAM), mode]
    done = subprocess.run(command, input=_records(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = [line if line in {"dropped", "tombstone"} else json.loads(line) for line in done.stdout.splitlines()]
    old, new = {"id": 7, "note": None}, {"id": 7, "note": "x"}
    if mode == "tombstone":
        assert found == [old, new, "tombstone", "dropped", "dropped"]
    else:
        live = {"__deleted": "false"}
        after = "dropped" if mode == "rewrite" else "tombstone"
        assert found == [{**old, **live}, {**new, **live}, {**new, "__deleted": "true"}, after, "dropped"]
