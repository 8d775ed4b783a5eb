"""The versions of each row of a shape's log since a transaction: its value, from when, and until when.

A version begins and ends with transactions; states within a transaction are not versions. The earlier rows are folded,
and the items since then are sorted by key beside them. Most rows have none and are passed on by Arrow unchanged. So
memory does not depend on the number of rows or items.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
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
    before = _Before(folded_rows(table, replace(shape, last_commit=after_tx), check))
    items, truncates = shape_items(table, shape, after_tx, check)
    first = next(items, None)
    events = _events(() if first is None else chain([first], items))
    found = list[Version]()
    for key, of_key in groupby(events, itemgetter(0)):
        for rows in before.below(key):
            yield _kept(rows, truncates)
        for version in _versions(key, before.take(key), (event for _, event in of_key), truncates):
            found.append(version)
            if len(found) == ROWS:
                yield _table(found)
                found = []
    yield _table(found)
    for rows in before.below(None):
        yield _kept(rows, truncates)


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


def _table(versions: list[Version]) -> pa.Table:
    columns = zip(*versions, strict=True) if versions else iter([()] * len(_VERSIONS))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _VERSIONS, strict=True)]
    return pa.table(arrays, schema=_VERSIONS)


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
