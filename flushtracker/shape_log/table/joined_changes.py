"""``joined_changes``: the rows that a shape with subqueries gains and loses with each transaction.

The log of such a shape has changes of all of its tables. The versions of the other tables' rows determine what each
subquery returned at any time. The condition is then evaluated for each version of a row of its own table, and again
whenever a subquery result that it used has changed. So the changes of a transaction depend only on the rows before and
after it, and every reader computes the same ones from any position.

The subqueries' results over time are kept in memory; the rest is sorted in temporary files. If the results have not
changed, only changed rows are evaluated.

A row's versions begin and end with transactions; states within a transaction are not versions. The earlier rows are
folded, and the items since then are sorted by key beside them. Most rows have none and are passed on by Arrow
unchanged. So memory does not depend on the number of rows or items.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from flushtracker.shape_log.fold import TRUNCATE, columns_of, fold
from flushtracker.shape_log.table.difference_rows import row_changes
from flushtracker.shape_log.table.external_sort import ROWS, sort_tables
from flushtracker.shape_log.table.folded_shape import folded_rows, shape_items
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.shape_log.table.joined_rows import is_of, joined_condition, named_columns, shown_text
from flushtracker.shape_log.truncates import Truncates
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.item_key import joined_prefix
from flushtracker.shapes.where.joined_condition import JoinedCondition
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
                yield _table(found, _VERSIONS)
                found = []
    yield _table(found, _VERSIONS)
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


_CHANGES: Final = pa.schema(
    [("tx_offset", pa.int64()), ("rank", pa.int8())]
    + [(name, _TEXT) for name in ("key", "operation", "value", "old_value")]
)
_Change = tuple[int, int, str, str, str | None, str | None]


def joined_changes(
    table: DeltaTable, shape: FoundShape, after_tx: int, check: Callable[[], None] | None = None
) -> Iterator[pa.Table]:
    """The changes of a shape with subqueries after a transaction, up to its bound, as sent to clients.

    The columns are ``tx_offset``, ``rank``, ``key``, ``operation``, ``value`` and ``old_value``, in the order of the
    first three: within a transaction all deletes come first. An update has the whole row, and the old values of the
    changed columns. Raises as ``shape_rows``, also if the condition has no outcome at some time in between.
    """
    if shape.entry is None:
        raise ValueError("the definition of a shape with subqueries is known")
    definition = shape.entry.definition
    condition = joined_condition(shape, definition)
    versions = _own_versions(row_versions(table, shape, after_tx, check), condition, definition)
    # Sorting reads all versions before it returns the first one, so the subqueries are complete by then.
    own = _that_may_change(sort_tables(versions, VERSION_ORDER), condition)
    changes = _changes(own, condition, named_columns(shape), shape.key_columns)
    return sort_tables(_in_tables(changes, check), ("tx_offset", "rank", "key"))


def _own_versions(
    versions: Iterable[pa.Table], condition: JoinedCondition, definition: ShapeDefinition
) -> Iterator[pa.Table]:
    """The versions of the shape's own table; those that subqueries read are added to the condition."""
    for table in versions:
        for name in condition.inner_tables:
            for _, since, until, value in _rows(table.filter(is_of(table, joined_prefix(name)))):
                condition.add(name, columns_of(value), (since, until))
        yield table.filter(is_of(table, joined_prefix(definition.table)))


def _rows(table: pa.Table) -> Iterator[Version]:
    yield from zip(*(table[name].to_pylist() for name in ("key", "since", "until", "value")), strict=True)


def _that_may_change(own: Iterable[pa.Table], condition: JoinedCondition) -> Iterator[Version]:
    is_settled = False
    for table in own:
        if not is_settled:
            condition.settle()
            is_settled = True
        if not condition.has_changes:
            is_other = pc.or_(pc.greater(table["since"], FIRST), pc.less(table["until"], END))
            yield from _rows(table.filter(is_other))
        else:
            yield from _rows(table)


def _changes(
    own: Iterable[Version], condition: JoinedCondition, names: tuple[str, ...] | None, key_columns: Collection[str]
) -> Iterator[_Change]:
    for key, versions in groupby(own, itemgetter(0)):
        was: str | None = None
        for tx, now in _shown(versions, condition, names):
            if tx > FIRST and now != was:
                for change in row_changes(key, was, now, key_columns):
                    yield tx, *change
            was = now


def _shown(
    versions: Iterable[Version], condition: JoinedCondition, names: tuple[str, ...] | None
) -> Iterator[tuple[int, str | None]]:
    """The shape's version of one row from each transaction on; ``None`` for no row."""
    end = FIRST
    for _, since, until, value in versions:
        if since > end:
            yield end, None
        columns = columns_of(value)
        text = value if names is None else shown_text(columns, names)
        for start, _, is_in in condition.outcomes(columns, (since, until)):
            yield start, text if is_in else None
        end = until
    if end < END:
        yield end, None


def _in_tables(changes: Iterable[_Change], check: Callable[[], None] | None) -> Iterator[pa.Table]:
    held = list[_Change]()
    for change in changes:
        held.append(change)
        if len(held) == ROWS:
            yield _table(held, _CHANGES)
            held = []
            if check is not None:
                check()
    yield _table(held, _CHANGES)


def _table(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else iter([()] * len(schema))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)
