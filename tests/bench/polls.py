"""A poll of a shape's log that finds nothing: what it costs after a long history, for one follower and for many."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from flushtracker.delta.log.columns import SCHEMA
from flushtracker.delta.log.reader import ShapeLogReader
from flushtracker.delta.log.table import create_shape_log
from flushtracker.delta.log.upkeep import ShapeLogUpkeep
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.position import Position
from flushtracker.wal.log_offset import OP_INFINITY
from tests.bench.measure import Table
from tests.support.shape_log_rows import SOURCE, append, commit

_NOW: Final = datetime(2026, 1, 2, tzinfo=timezone.utc)
_PER_APPEND: Final = 10_000
_POLLS: Final = 10


def tables(*, quick: bool) -> Iterator[Table]:
    """Of one shape with a long log, and of many with short ones, while another one is written."""
    lines = [_line(1, transactions, quick=quick) for transactions in ((1_000,) if quick else (10_000, 1_000_000))]
    lines += [_line(10, 100, quick=quick) if quick else _line(1_000, 1_000, quick=quick)]
    header = ["followers", "transactions of each", "files", "nothing new", "something new", "a new process"]
    yield Table("A poll of the shape log after another append, ms of CPU for each follower", header, lines)


def _line(shapes: int, transactions: int, *, quick: bool) -> list[str]:
    shape_ids = [f"shape-{number:05}" for number in range(shapes)]
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "log")
        create_shape_log(log)
        last = _fill(log, shape_ids, transactions)
        files = len(DeltaTable(log).file_uris())
        reader = ShapeLogReader(log)
        positions = {shape_id: Position(SOURCE, last, 0) for shape_id in shape_ids}
        _poll(reader, positions, expected=0)
        nothing = something = fresh = 0.0
        polls = 1 if quick else _POLLS
        followed = dict(list(positions.items())[:10])
        for number in range(1, polls + 1):
            append(log, [commit(last + number, shape_id="other"), commit(last + number, shape_id="zzz")])
            nothing += _poll(reader, positions, expected=0)
            fresh += _poll(None, followed, log, expected=0)
        for number in range(1, polls + 1):
            append(log, [commit(last + number, shape_id=shape_id) for shape_id in shape_ids])
            something += _poll(reader, positions, expected=number)
    each_ms = [1e3 * nothing / shapes, 1e3 * something / shapes, 1e3 * fresh / len(followed)]
    return [f"{shapes:,}", f"{transactions:,}", f"{files:,}", *(f"{spent / polls:.2f}" for spent in each_ms)]


def _fill(log: str, shape_ids: Sequence[str], transactions: int) -> int:
    """Append transactions of one update in each shape, as the writers' job and upkeep do; returns the last one."""
    step = max(1, _PER_APPEND // len(shape_ids))
    for first in range(1, transactions + 1, step):
        numbers = range(first, min(first + step, transactions + 1))
        count = len(numbers) * len(shape_ids)
        columns: dict[str, Sequence[object]] = {
            "source": [SOURCE] * 2 * count,
            "shape_id": [shape_id for shape_id in shape_ids for _ in numbers for _ in (0, 1)],
            "tx_offset": [number for _ in shape_ids for number in numbers for _ in (0, 1)],
            "op_offset": [0, OP_INFINITY] * count,
            "operation": ["insert" if first == 1 else "update", COMMIT] * count,
            "key": ["k", None] * count,
            "value": [text for number in numbers for text in (f'{{"id":"k","n":"{number}"}}', None)] * len(shape_ids),
            "old_value": [None] * 2 * count,
            "xid": [number for _ in shape_ids for number in numbers for _ in (0, 1)],
            "commit_timestamp": [None, _NOW] * count,
            "chunk": [0] * 2 * count,
            "written_at": [None, _NOW] * count,
        }
        write_deltalake(log, pa.table(columns, schema=SCHEMA), mode="append")
        ShapeLogUpkeep(log).run(_NOW)
    return transactions


def _poll(reader: ShapeLogReader | None, positions: dict[str, Position], log: str = "", *, expected: int) -> float:
    """Poll each shape, by one reader or each by its own; returns the seconds of CPU."""
    started = time.process_time()
    for shape_id, position in positions.items():
        found = (reader or ShapeLogReader(log)).read_log(shape_id, position)
        assert len(found.rows) == expected
    return time.process_time() - started
