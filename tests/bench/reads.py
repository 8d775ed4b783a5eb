"""Reading the rows of a shape by folding its log, and a follower's difference: CPU time, and the most memory."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from flushtracker.shape_log.position import Position
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shape_log.table.log_table import create_shape_log
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.bench.measure import Table
from tests.support.shape_log_rows import SOURCE, append, commit, snapshot_rows

_PER_APPEND: Final = 200_000
_NAMES: Final = ("Ada", "Björn", "Chiara", "Dmitri", "Echo Company", "François", "Gül")

READ: Final = """
import json, resource, sys, time
from flushtracker.shape_log.table.reader import read_shape

started = time.process_time()
rows = sum(len(batch) for batch in read_shape(sys.argv[1], "users").batches)
spent_s, peak_kb = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([rows, spent_s, peak_kb]))
"""

_FOLLOW: Final = """
import json, resource, sys, time
from flushtracker.shape_log.table.reader import read_shape_log
from flushtracker.shape_log.position import Position

started = time.process_time()
rows = sum(len(batch) for batch in read_shape_log(sys.argv[1], "users", Position.parse(sys.argv[2])).batches)
spent_s, peak_kb = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([rows, spent_s, peak_kb]))
"""
_DIFFERS: Final = 100
"""One of so many rows is another in the second snapshot."""


def tables(*, quick: bool) -> Iterator[Table]:
    """Shapes that only have inserts, and one of few rows that change all the time."""
    sizes = [(1_000, 0), (10, 100)] if quick else [(2_000_000, 0), (10_000_000, 0), (1_000, 1_000)]
    header = ["rows", "updates of each", "items", "bytes of an item", "CPU s", "items/s", "most MB resident"]
    yield Table("read_shape, by batches", header, [_line(*each) for each in sizes])
    header = ["rows", "changes", "CPU s", "rows/s", "most MB resident"]
    counts = [1_000] if quick else [1_000_000, 10_000_000]
    yield Table("read_shape_log, the difference to a new snapshot", header, [_difference(rows) for rows in counts])


def _difference(rows: int) -> list[str]:
    """A follower of the first snapshot gets the difference to the second, of the shape's next incarnation."""
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        for attempt in (1, 2):
            for first in range(0, rows, _PER_APPEND):
                append_snapshot_rows(log, attempt, range(first, min(first + _PER_APPEND, rows)))
            begun = (attempt, 50) if attempt > 1 else (1, -1)
            end = ShapeSnapshot(attempt, MvccSnapshot(9, 9), 99, 9, None, *begun)
            append(log, snapshot_rows(end, {}))
        command = [sys.executable, "-c", _FOLLOW, log, str(Position(SOURCE, 0, 1))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found, spent_s, peak_kb = json.loads(done.stdout)
    changes = len(range(0, rows, _DIFFERS))
    assert found == changes + 1
    rate = f"{float(f'{rows / spent_s:.3g}'):,.0f}"
    return [f"{rows:,}", f"{changes:,}", f"{spent_s:.1f}", rate, f"{peak_kb / 1e3:,.0f}"]


def append_snapshot_rows(log: str, attempt: int, ids: range) -> None:
    """Append rows of a snapshot; of later attempts, some are others."""
    others = [attempt if number % _DIFFERS == 0 else 1 for number in ids]
    items = _items(ids.start, ids.stop, ids.stop, "users")
    value = [f'{{"id":"{number}","city":"Berlin","n":"{other}"}}' for number, other in zip(ids, others, strict=True)]
    columns = {"value": value, "tx_offset": [0] * len(ids), "chunk": [attempt] * len(ids)}
    for name, values in columns.items():
        place = items.schema.get_field_index(name)
        items = items.set_column(place, items.schema.field(place), pa.array(values, items.schema.field(place).type))
    write_deltalake(DeltaTable(log), items, mode="append")


def _line(rows: int, updates: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        item_bytes = append_rows(log, rows, updates)
        done = subprocess.run([sys.executable, "-c", READ, log], capture_output=True, text=True, check=True)
        found, spent_s, peak_kb = json.loads(done.stdout)
    assert found == rows
    items = rows * (1 + updates)
    rate = f"{float(f'{items / spent_s:.3g}'):,.0f}"
    return [
        *(f"{rows:,}", f"{updates:,}", f"{items:,}", f"{item_bytes:.0f}", f"{spent_s:.1f}", rate),
        f"{peak_kb / 1e3:,.0f}",
    ]


def append_rows(log: str, rows: int, updates: int = 0, *, shape_id: str = "users") -> float:
    """Append inserts of so many rows, and updates of each, in transactions; returns the bytes of an item's texts."""
    total, texts = rows * (1 + updates), 0
    for first in range(0, total, _PER_APPEND):
        items = _items(first, min(first + _PER_APPEND, total), rows, shape_id)
        texts += items["key"].nbytes + items["value"].nbytes
        write_deltalake(DeltaTable(log), items, mode="append")
        append(log, [commit(1000 + first, shape_id=shape_id)])
    return texts / total


def _items(first: int, end: int, rows: int, shape_id: str) -> pa.Table:
    numbers = pa.array(range(first, end), pa.int64())
    ids = pa.array([number % rows for number in range(first, end)], pa.int64()).cast(pa.string())
    cents = pc.cast(pc.multiply(numbers, 7919), pa.string())
    names = pa.array(_NAMES).take(pa.array([number % len(_NAMES) for number in range(first, end)]))
    value = ['{"id":"', ids, '","name":"', names, '","city":"Berlin","balance":"', cents, '.00","note":null}', ""]
    filled = {
        "source": SOURCE,
        "shape_id": shape_id,
        "tx_offset": 1000 + first,
        "op_offset": numbers,
        "operation": pa.array(["insert" if number < rows else "update" for number in range(first, end)]),
        "key": pc.binary_join_element_wise('"public"."users"/"', ids, '"', ""),
        "value": pc.binary_join_element_wise(*value),
        "xid": 1000 + first,
        "chunk": 0,
    }
    columns = [
        column
        if isinstance(column := filled.get(field.name), pa.Array)
        else pa.repeat(pa.scalar(column, field.type), end - first)
        for field in SCHEMA
    ]
    return pa.table(columns, schema=SCHEMA)
