"""The rows of a difference: the changes by key that turn some rows into others.

Both come sorted by key, a few thousand at a time, so memory does not depend on how many there are. Most keys have the
same text in both, which Arrow compares; only the others are parsed as JSON.

==========================================  =============================================================
a key is                                    its changes
==========================================  =============================================================
only in the rows before                     a delete, with the whole old row
only in the rows after                      an insert
in both, with other values                  an update, with the whole new row, and in ``old_value`` the
                                            old values of what has changed
in both, and the new row lacks a column,    a delete and an insert: an update would leave the column as
or has another value in a key column        it was, or tell a reader of the values another row
==========================================  =============================================================

All deletes come first, so that no insert collides with a row that is to be deleted.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from flushtracker.shape_log.fold import columns_of
from flushtracker.shape_log.table.external_sort import sort_tables

CHANGE_ORDER: Final = ("rank", "key")

_TEXT: Final = pa.large_string()
_CHANGES: Final = pa.schema(
    [("rank", pa.int8()), ("key", _TEXT), ("operation", _TEXT), ("value", _TEXT), ("old_value", _TEXT)]
)
_DELETES, _OTHERS = 0, 1

RowChange = tuple[int, str, str, str | None, str | None]
"""Rank, key, operation, value, old value."""


def changes_between(
    before: Iterable[pa.Table], after: Iterable[pa.Table], key_columns: Collection[str] = ()
) -> Iterator[pa.Table]:
    """The changes, deletes first, as columns ``operation``, ``key``, ``value``, ``old_value``; raises as the folds do.

    Both have ``key`` and ``value``, sorted by key, each key once. Everything is read before the first change is
    returned.
    """
    found = (_changes(old, new, key_columns) for old, new in _pairs(_texts(before), _texts(after)))
    for table in sort_tables(found, CHANGE_ORDER):
        yield table.drop_columns(["rank"])


def _texts(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    for table in filter(len, tables):
        yield table.select(["key", "value"]).cast(pa.schema([("key", _TEXT), ("value", _TEXT)])).combine_chunks()


def _pairs(before: Iterator[pa.Table], after: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Matching parts of both, so that each key is in only one pair."""
    old, new = next(before, None), next(after, None)
    while old is not None and new is not None:
        bound = min(_last_key(old), _last_key(new))
        ends = [pc.sum(pc.less_equal(each["key"], bound)).as_py() for each in (old, new)]
        yield old.slice(0, ends[0]), new.slice(0, ends[1])
        old = old.slice(ends[0]) if ends[0] < len(old) else next(before, None)
        new = new.slice(ends[1]) if ends[1] < len(new) else next(after, None)
    while old is not None:
        yield old, old.slice(0, 0)
        old = next(before, None)
    while new is not None:
        yield new.slice(0, 0), new
        new = next(after, None)


def _last_key(table: pa.Table) -> str:
    return str(table["key"][len(table) - 1].as_py())


def _changes(old: pa.Table, new: pa.Table, key_columns: Collection[str]) -> pa.Table:
    place = pc.index_in(old["key"], new["key"].combine_chunks())
    gone = old.filter(pc.is_null(place))
    is_new = pc.is_null(pc.index_in(new["key"], old["key"].combine_chunks()))
    kept, then = old.filter(pc.is_valid(place)), new.take(pc.drop_null(place))
    is_same = pc.fill_null(pc.equal(kept["value"], then["value"]), fill_value=False)
    kept, then = kept.filter(pc.invert(is_same)), then.filter(pc.invert(is_same))
    rows = zip(kept["key"].to_pylist(), kept["value"].to_pylist(), then["value"].to_pylist(), strict=True)
    updated = [change for key, was, now in rows for change in _changed(key, was, now, key_columns)]
    return pa.concat_tables(
        [
            _of_rows(gone, _DELETES, "delete"),
            _of_rows(new.filter(is_new), _OTHERS, "insert"),
            pa.table([pa.array(column, field.type) for column, field in _by_column(updated)], schema=_CHANGES),
        ]
    )


def _of_rows(rows: pa.Table, rank: int, operation: str) -> pa.Table:
    count = len(rows)
    columns = {
        "rank": pa.repeat(pa.scalar(rank, pa.int8()), count),
        "key": rows["key"],
        "operation": pa.repeat(pa.scalar(operation, _TEXT), count),
        "value": rows["value"],
        "old_value": pa.nulls(count, _TEXT),
    }
    return pa.table(columns, schema=_CHANGES)


def _by_column(changes: list[RowChange]) -> Iterator[tuple[list[object], pa.Field]]:
    columns = zip(*changes, strict=True) if changes else iter([()] * len(_CHANGES))
    for column, field in zip(columns, _CHANGES, strict=True):
        yield list(column), field


def row_changes(key: str, was: str | None, now: str | None, key_columns: Collection[str]) -> Iterator[RowChange]:
    """The changes of one row, with their ranks; ``None`` stands for no row."""
    if was is None:
        yield from [] if now is None else [(_OTHERS, key, "insert", now, None)]
    elif now is None:
        yield _DELETES, key, "delete", was, None
    else:
        yield from _changed(key, was, now, key_columns)


def _changed(key: str, was: str | None, now: str | None, key_columns: Collection[str]) -> Iterator[RowChange]:
    old, new = columns_of(was), columns_of(now)
    if old == new:
        return
    has_same_key = all(old.get(name) == new.get(name) for name in key_columns)
    if old.keys() <= new.keys() and has_same_key:
        changed = {name: value for name, value in old.items() if new[name] != value}
        yield _OTHERS, key, "update", now, json.dumps(changed, ensure_ascii=False, separators=(",", ":"))
    else:
        yield _DELETES, key, "delete", was, None
        yield _OTHERS, key, "insert", now, None
