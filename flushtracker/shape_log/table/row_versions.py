"""The versions of each row of a shape's log since a transaction: its value, from when, and until when.

A version begins and ends with transactions; states within a transaction are not versions. The earlier rows are folded,
and the items since then are sorted by key beside them. Most rows have none and are passed on by Arrow unchanged. So
memory does not depend on the number of rows or items.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from flushtracker.shape_log.fold import TRUNCATE, fold
from flushtracker.shape_log.table.external_sort import ROWS
from flushtracker.shape_log.table.folded_shape import folded_rows, shape_items
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.truncates import Truncates
from flushtracker.shapes.where.query_set import ALWAYS, END

FIRST: Final = ALWAYS[0]
"""Stands for "since before": the row already had this value when the versions begin."""

VERSION_ORDER: Final = ("key", "since")
_MOST_HELD: Final = 5_000
"""If there are no more items, only the earlier rows with their keys are read."""

_TEXT: Final = pa.large_string()
_VERSIONS: Final = pa.schema([("key", _TEXT), ("since", pa.int64()), ("until", pa.int64()), ("value", _TEXT)])

Version = tuple[str, int, int, str]
"""Key, the transaction that created the version, or ``FIRST``, the one that ended it, or ``END``, and value."""

_Event = tuple[int, int, str, str | None]
"""Transaction, operation number, operation and value of an item or a truncate."""


def row_versions(
    table: DeltaTable, shape: FoundShape, after_tx: int, check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """The versions since the transaction ``after_tx``, with columns ``key``, ``since``, ``until`` and ``value``.

    They are sorted by key, those of a row by time. Raises as ``folded_rows``.
    """
    before = folded_rows(table, replace(shape, last_commit=after_tx), check)
    return _all_versions(before, *shape_items(table, shape, after_tx, check))


def changed_versions(
    table: DeltaTable, shape: FoundShape, after_tx: int, check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """As :func:`row_versions`, but without the rows that have not changed since ``after_tx``.

    If there are few items, no earlier rows but these are folded.
    """
    items, truncates = shape_items(table, shape, after_tx, check)
    held, count = list[pa.Table](), 0
    for rows in items:
        held.append(rows)
        count += len(rows)
        if count > _MOST_HELD:
            break
    keys = None
    if not truncates and count <= _MOST_HELD:
        keys = {key for rows in held for key in rows["key"].to_pylist()}
        if not keys:
            return
    before = folded_rows(table, replace(shape, last_commit=after_tx), check, keys)
    for versions in _all_versions(before, chain(held, items), truncates):
        yield versions.filter(pc.or_(pc.greater(versions["since"], FIRST), pc.less(versions["until"], END)))


def versions_in(table: pa.Table) -> Iterator[Version]:
    """The versions in a table of :func:`row_versions`, in its order."""
    yield from zip(*(table[name].to_pylist() for name in _VERSIONS.names), strict=True)


def _all_versions(rows: Iterator[pa.Table], items: Iterator[pa.Table], truncates: Truncates) -> Iterator[pa.Table]:
    """The versions of the earlier ``rows``, and of those of the ``items``, both sorted by key."""
    before, first = _Before(rows), next(items, None)
    events = _events(() if first is None else chain([first], items))
    found = list[Version]()
    for key, of_key in groupby(events, itemgetter(0)):
        for unchanged in before.below(key):
            yield _kept(unchanged, truncates)
        for version in _versions(key, before.take(key), (event for _, event in of_key), truncates):
            found.append(version)
            if len(found) == ROWS:
                yield columnar(found, _VERSIONS)
                found = []
    yield columnar(found, _VERSIONS)
    for unchanged in before.below(None):
        yield _kept(unchanged, truncates)


def _events(tables: Iterable[pa.Table]) -> Iterator[tuple[str, _Event]]:
    for table in tables:
        columns = (table[name].to_pylist() for name in ("key", "tx_offset", "op_offset", "operation", "value"))
        for key, *event in zip(*columns, strict=True):
            yield key, (event[0], event[1], event[2], event[3])


def _versions(key: str, value: str | None, items: Iterable[_Event], truncates: Truncates) -> Iterator[Version]:
    """The versions of one row, whose ``value`` was this before; raises ``DecodeError`` as ``fold``."""
    emptied = ((tx, op, TRUNCATE, None) for tx, op in truncates.of(key))
    since = FIRST
    for tx, events in groupby(merge(items, emptied, key=itemgetter(0, 1)), itemgetter(0)):
        held = [] if value is None else [("insert", key, value)]
        row = fold([*held, *((operation, key, text) for _, _, operation, text in events)]).get(key)
        if value is not None:
            yield key, since, tx, value
        since, value = tx, None if row is None else json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    if value is not None:
        yield key, since, END, value


def _kept(rows: pa.Table, truncates: Truncates) -> pa.Table:
    """The only version of each row without items since; a truncate may have ended it."""
    until = pa.repeat(pa.scalar(END, pa.int64()), len(rows))
    if truncates:
        ends = (truncates.of(key) for key in rows["key"].to_pylist())
        until = pa.array([found[0][0] if found else END for found in ends], pa.int64())
    columns = [rows["key"], pa.repeat(pa.scalar(FIRST, pa.int64()), len(rows)), until, rows["value"]]
    return pa.table(dict(zip(_VERSIONS.names, columns, strict=True))).cast(_VERSIONS)


def columnar(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else iter([()] * len(schema))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


class _Before:
    """The earlier rows, sorted by key, consumed once from the first on."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = filter(len, tables)
        self._table = next(self._tables, None)

    def below(self, key: str | None) -> Iterator[pa.Table]:
        """The rows before a key; all for ``None``."""
        while self._table is not None:
            end = len(self._table) if key is None else self._place(self._table, key)
            yield self._table.slice(0, end)
            if end < len(self._table):
                self._table = self._table.slice(end)
                return
            self._table = next(self._tables, None)

    def take(self, key: str) -> str | None:
        """If the first remaining row has this key, consume it and return its value."""
        if self._table is None or self._table["key"][0].as_py() != key:
            return None
        value = str(self._table["value"][0].as_py())
        self._table = self._table.slice(1) if len(self._table) > 1 else next(self._tables, None)
        return value

    @staticmethod
    def _place(table: pa.Table, key: str) -> int:
        keys = table["key"]
        return bisect_left(range(len(table)), key, key=lambda index: str(keys[index].as_py()))
