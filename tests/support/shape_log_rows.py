"""Rows of a shape log as the writer appends them, without Spark: transactions of random shapes, whole or cut."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import SNAPSHOT, ShapeSnapshot
from flushtracker.shape_log.table.columns import SCHEMA
from flushtracker.shapes.item_key import key_values, partition_prefix
from flushtracker.wal.log_offset import OP_INFINITY, LogOffset

SOURCE = "7301/1/shapes"
_NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

Row = dict[str, object]


def item(
    offset: tuple[int, int],
    operation: str,
    key: str | None = None,
    value: dict[str, str | None] | None = None,
    *,
    shape_id: str = "users",
    source: str = SOURCE,
) -> Row:
    """One row; a ``commit`` row is :func:`commit`."""
    tx, op = offset
    text = None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    row: Row = dict.fromkeys(SCHEMA.names)
    return row | {
        "source": source,
        "shape_id": shape_id,
        "tx_offset": tx,
        "op_offset": op,
        "operation": operation,
        "key": key,
        "value": text,
        "xid": tx,
        "chunk": 0,
    }


def commit(tx: int, *, shape_id: str = "users", source: str = SOURCE) -> Row:
    return item((tx, OP_INFINITY), COMMIT, shape_id=shape_id, source=source) | {
        "commit_timestamp": _NOW,
        "written_at": _NOW,
    }


def snapshot_rows(
    snapshot: ShapeSnapshot, rows: Mapping[str, dict[str, str | None]], *, shape_id: str = "users"
) -> list[Row]:
    """A snapshot's inserts, and the row that ends it; all are to be appended in one commit."""
    inserts = [item((0, 3 * n + 1), "insert", key, row, shape_id=shape_id) for n, (key, row) in enumerate(rows.items())]
    end = item((0, OP_INFINITY), SNAPSHOT, shape_id=shape_id)
    end |= {"value": snapshot.to_json(), "commit_timestamp": _NOW}
    return [row | {"chunk": snapshot.attempt} for row in (*inserts, end)]


def arrow(rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def append(log: str | DeltaTable, rows: Iterable[Row]) -> None:
    """Append rows in one commit, as the writer does."""
    write_deltalake(log, arrow(rows), mode="append")


@dataclass
class RandomLog:
    """An endless log of several shapes with the rows that each shape has, by a definition as naive as can be."""

    seed: int
    shape_ids: Sequence[str] = ("users", "it's", "users-eu")
    keys: int = 5
    tx: int = 100
    rows: dict[str, dict[str, dict[str, str | None]]] = field(default_factory=dict)
    at: dict[str, list[tuple[LogOffset, dict[str, dict[str, str | None]]]]] = field(default_factory=dict)
    """For each shape, the last item's offset of each transaction, and the rows after it."""
    partitions: int = 0
    """How many partitions the keys name; 0: none."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311  a reproducible log
        self.rows = {shape_id: {} for shape_id in self.shape_ids}
        self.at = {shape_id: [] for shape_id in self.shape_ids}

    def transaction(self, most_items: int = 6) -> list[Row]:
        """The rows of the next transaction, of one shape or several."""
        self.tx += self._random.randint(8, 40)
        op, found = 0, list[Row]()
        chosen = self._random.sample(self.shape_ids, self._random.randint(1, min(3, len(self.shape_ids))))
        for shape_id in chosen:
            last = 0
            for _ in range(self._random.randint(0, most_items)):
                for row in self._change(shape_id, op):
                    found.append(row)
                    last = op = int(str(row["op_offset"]))
                op += 2 - op % 2
            found.append(commit(self.tx, shape_id=shape_id))
            self.at[shape_id].append((LogOffset(self.tx, last), {k: dict(r) for k, r in self.rows[shape_id].items()}))
        return found

    def fragments(self) -> Iterator[list[Row]]:
        """The next transaction in several parts, of which each is appended."""
        rows, place = self.transaction(), 0
        while place < len(rows):
            size = self._random.randint(1, 4)
            yield rows[place : place + size]
            place += size

    def _change(self, shape_id: str, op: int) -> Iterator[Row]:
        rows, number = self.rows[shape_id], self._random.randrange(self.keys)
        offset = (self.tx, op)
        key = self._key(number)
        text = self._random.choice([None, "", "x", 'a"b\\c', "Grüße\n", str(self._random.random())])
        draw = self._random.random()
        if draw < 0.1 and self.partitions:
            partition = partition_prefix(("public", "t"), self._random.randrange(self.partitions))
            for gone in [key for key in rows if key.startswith(f"{partition}/")]:
                del rows[gone]
            yield item(offset, "truncate_partition", partition, shape_id=shape_id)
        elif draw < 0.04:
            rows.clear()
            yield item(offset, "truncate", shape_id=shape_id)
        elif key not in rows:
            rows[key] = {"id": key, "a": text, **({} if draw < 0.3 else {"b": "b"})}
            yield item(offset, "insert", key, dict(rows[key]), shape_id=shape_id)
        elif draw < 0.3:
            del rows[key]
            yield item(offset, "delete", key, {"id": key}, shape_id=shape_id)
        elif draw < 0.5 and (free := [each for each in map(self._key, range(self.keys)) if each not in rows]):
            # An update that changes the key.
            moved = self._random.choice(free)
            rows[moved] = {**rows.pop(key), "id": moved}
            yield item(offset, "delete", key, {"id": key}, shape_id=shape_id)
            yield item((self.tx, op + 1), "insert", moved, dict(rows[moved]), shape_id=shape_id)
        else:
            changed = {self._random.choice(["a", "b", "c"]): text}
            rows[key].update(changed)
            yield item(offset, "update", key, {"id": key, **changed}, shape_id=shape_id)

    def _key(self, number: int) -> str:
        if not self.partitions:
            return f"k{number}"
        return partition_prefix(("public", "t"), number % self.partitions) + key_values([f"k{number}"])


def append_transactions(
    log: str | DeltaTable, shape_ids: Sequence[str], number: int, *, rows_each: int = 4, source: str = SOURCE
) -> None:
    """Append transaction ``number`` of every shape, with ``rows_each`` inserts, quickly."""
    tx = 1000 + 100 * number
    ops = [*(2 * n for n in range(rows_each)), OP_INFINITY]
    count, size = len(shape_ids), len(ops)
    values = [f'{{"id":"{n}","at":"{number}","text":"{n * 7919 % 1000003}"}}' for n in range(count * size)]
    is_commit = [op == OP_INFINITY for op in ops] * count
    columns: dict[str, list[object]] = {
        "source": [source] * (count * size),
        "shape_id": [shape_id for shape_id in shape_ids for _ in ops],
        "tx_offset": [tx] * (count * size),
        "op_offset": [op for _ in shape_ids for op in ops],
        "operation": [COMMIT if ends else "insert" for ends in is_commit],
        "key": [None if ends else f"k{n}" for n, ends in enumerate(is_commit)],
        "value": [None if ends else value for value, ends in zip(values, is_commit, strict=True)],
        "old_value": [None] * (count * size),
        "xid": [tx] * (count * size),
        "commit_timestamp": [_NOW if ends else None for ends in is_commit],
        "chunk": [0] * (count * size),
        "written_at": [_NOW if ends else None for ends in is_commit],
    }
    write_deltalake(log, pa.table(columns, schema=SCHEMA), mode="append")


def inserts(tx: int, *keys: str) -> list[Row]:
    """A transaction with a row for each key."""
    rows = [item((tx, 2 * n), "insert", key, {"id": key}) for n, key in enumerate(keys)]
    return [*rows, commit(tx)]
