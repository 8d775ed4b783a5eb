"""A table with random changes, and the logs of the shapes of it that definitions on demand are answered from.

The changes are those that a server sends: an update omits large values that it has not changed, and has the old row
only as far as the replica identity goes. The router makes the logs' items of them.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shapes.bound_relation import relation_of
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.log_items import log_items
from flushtracker.shapes.shape import Shape
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding
from flushtracker.shapes.where import parse_where
from flushtracker.wal.changes import Change, Delete, Insert, Relation, Row, Truncate, Update
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.mvcc_snapshot import MvccSnapshot
from tests.support.key_bindings import ID_KEY
from tests.support.random_ranges import VALUES, random_condition
from tests.support.sample_registry import shape_entry
from tests.support.shape_log_rows import SOURCE, commit, item, snapshot_rows
from tests.support.shape_log_rows import Row as LogRow
from tests.support.where_table import COLUMNS

ORDERS: Final = ("public", "orders")
LARGE: Final = ("t", "v")
"""Columns whose values updates omit if they have not changed them."""
READ: Final = ("i4", "n", "b", "t", "v", "d")
NAMES: Final = ("id", *READ)
_TYPES: Final = {"id": 23, **{name: COLUMNS[name] for name in READ}}
BINDING: Final = TableBinding(
    7, ORDERS, ID_KEY, tuple(ColumnBinding(n, name, oid, -1, 0) for n, (name, oid) in enumerate(_TYPES.items(), 1))
)
WHOLE: Final = ShapeDefinition("orders", ORDERS, primary_key=("id",), snapshot=True)
_KEYS: Final = 12
_SNAPSHOT: Final = ShapeSnapshot(1, MvccSnapshot.parse("1:1:"), lsn=8, next_xid=1)

States = list[tuple[int, dict[str, Row]]]


def order_entry(definition: ShapeDefinition = WHOLE) -> ShapeEntry:
    return replace(shape_entry(definition.id), definition=definition)


def order_entries(*definitions: ShapeDefinition) -> list[ShapeEntry | TableEntry]:
    """The registry's entries of shapes, and of their table."""
    return [*map(order_entry, definitions), TableEntry(SOURCE, BINDING)]


class OrdersLog:
    """``rows`` are the table's, by id; ``at`` has them after each transaction. ``identity`` is what old rows have."""

    def __init__(self, rng: Random, definitions: list[ShapeDefinition], identity: str) -> None:
        self.rng = rng
        self.tx = 8
        relation = relation_of(BINDING)
        columns = tuple(replace(each, is_key=identity == "full" or each.name == "id") for each in relation.columns)
        self._has_old = identity == "full"
        self._relation: Relation = replace(
            relation, columns=columns, replica_identity="full" if identity == "full" else "default"
        )
        self._shapes = [Shape(each).bind(self._relation) for each in definitions]
        self.rows: dict[str, Row] = {str(n): self._row(str(n)) for n in range(_KEYS // 2)}
        self.at: States = [(0, dict(self.rows))]

    def snapshots(self) -> Iterator[list[LogRow]]:
        """The first rows of each shape."""
        for shape in self._shapes:
            changes = [Insert(self._relation, LogOffset(0, 0), row) for row in self.rows.values()]
            items = [found for each in changes if (kept := shape.filter(each)) for found in log_items(shape, kept)]
            rows = {str(each.key): dict(each.value or {}) for each in items}
            yield snapshot_rows(_SNAPSHOT, rows, shape_id=shape.definition.id)

    def transaction(self) -> list[LogRow]:
        """The rows of all shapes for the next transaction, of some changes; none if it concerns no shape."""
        self.tx += self.rng.randint(8, 40)
        changes, op = list[Change](), 0
        for _ in range(self.rng.randint(1, 6)):
            changes.append(self._change(LogOffset(self.tx, op)))
            op += 2
        self.at.append((self.tx, dict(self.rows)))
        found = list[LogRow]()
        for shape in self._shapes:
            items = [i for each in changes if (kept := shape.filter(each)) for i in log_items(shape, kept)]
            shape_id = shape.definition.id
            for each in items:
                offset = each.offset.tx_offset, each.offset.op_offset
                row = item(
                    offset,
                    each.operation,
                    each.key,
                    None if each.value is None else dict(each.value),
                    shape_id=shape_id,
                )
                old = None if each.old_value is None else json.dumps(each.old_value)
                found.append(row | {"old_value": old})
            if items:
                found.append(commit(self.tx, shape_id=shape_id))
        return found

    def _row(self, key: str) -> Row:
        return {"id": key, **{name: self._value(name) for name in READ}}

    def _value(self, name: str) -> str | None:
        return None if self.rng.random() < 0.15 else self.rng.choice(VALUES[name])

    def _old(self, row: Row) -> Row:
        return row if self._has_old else {"id": row["id"]}

    def _change(self, offset: LogOffset) -> Change:
        key, draw = str(self.rng.randrange(_KEYS)), self.rng.random()
        if draw < 0.02:
            self.rows.clear()
            return Truncate(self._relation, offset)
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = self._row(key)
            return Insert(self._relation, offset, self.rows[key])
        if draw < 0.2:
            return Delete(self._relation, offset, self._old(self.rows.pop(key)))
        free = [each for each in map(str, range(_KEYS)) if each not in self.rows]
        moved = self.rng.choice(free) if free and draw < 0.35 else key
        changed = {name: self._value(name) for name in self.rng.sample(READ, self.rng.randint(0, 3))}
        new = {**old, **changed, "id": moved}
        del self.rows[key]
        self.rows[moved] = new
        # Without the whole old row, a row that gets another key would lack what is omitted, which ends a shape.
        omits = self._has_old or moved == key
        omitted = [name for name in LARGE if omits and new[name] == old[name] and self.rng.random() < 0.7]
        sent = {name: value for name, value in new.items() if name not in omitted}
        has_old = self._has_old or moved != key
        return Update(self._relation, offset, self._old(old) if has_old else None, sent)


def random_definition(rng: Random) -> dict[str, str]:
    """The parameters of a definition on demand, which fits the table."""
    found = {"table": "orders", "replica": rng.choice(["default", "full"])}
    while rng.random() < 0.9 and "where" not in found:
        text = random_condition(rng, READ)
        try:
            parse_where(text).bind(relation_of(BINDING))
        except Exception:  # noqa: BLE001, S112  a few conditions fit no table
            continue
        found["where"] = text
    if rng.random() < 0.6:
        found["columns"] = ",".join(rng.sample(NAMES, rng.randint(1, 4)))
    return found


def shown(params: dict[str, str], rows: dict[str, Row]) -> dict[str, Row]:
    """What a definition is of the table's rows, by the router's own rule, by the log's key."""
    columns = tuple({*params["columns"].split(","), "id"}) if "columns" in params else None
    definition = ShapeDefinition("asked", ORDERS, columns, params.get("where"), primary_key=("id",))
    relation = relation_of(BINDING)
    bound = Shape(definition).bind(relation)
    found = dict[str, Row]()
    for row in rows.values():
        kept = bound.filter(Insert(relation, LogOffset(1, 0), row))
        if kept is not None:
            (each,) = log_items(bound, kept)
            found[str(each.key)] = dict(each.value or {})
    return found
