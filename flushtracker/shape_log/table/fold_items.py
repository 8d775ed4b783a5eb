"""Folds a shape's items in Arrow, a few thousand at a time: the same rows as :func:`flushtracker.shape_log.fold.fold`.

The items come sorted by key and offset, so those of a row are adjacent, and memory depends neither on the number of
rows nor on the changes of one. Truncates divide a row's items: those before the last truncate have no effect, and are
only checked.

Most rows have a single item, an insert, which needs no folding. All others are folded by ``fold``. The last row of a
table may have more items in the next one, so it is held back as an insert, the result of folding its items so far.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from flushtracker.errors import DecodeError
from flushtracker.shape_log.fold import UPDATE_WITHOUT_INSERT, fold
from flushtracker.shape_log.truncates import Truncates
from flushtracker.wal.log_offset import LogOffset

ITEM_ORDER: Final = ("key", "tx_offset", "op_offset")
ROW_ORDER: Final = ("tx_offset", "op_offset")
ITEM_COLUMNS: Final = ("tx_offset", "op_offset", "operation", "key", "value")
"""The columns of items, and of rows: a row is its last insert, with all of its current columns."""


def fold_items(items: Iterable[pa.Table], truncates: Truncates) -> Iterator[pa.Table]:
    """The rows, as inserts, sorted by key. The ``items`` come in ``ITEM_ORDER``, without truncates.

    Raises:
        DecodeError: as ``fold``, except that the value of a row with a single item is not parsed.
    """
    held: pa.Table | None = None
    for table in items:
        found = table if held is None else pa.concat_tables([held, table])
        found = found.combine_chunks().append_column("emptied", _emptied(found, truncates))
        rows = _fold(found)
        is_last = pc.and_(*(pc.equal(rows[name], found[name][len(found) - 1]) for name in ("key", "emptied")))
        held = rows.filter(is_last).select(ITEM_COLUMNS)
        yield _standing(rows.filter(pc.invert(is_last)))
    if held is not None and len(held):
        yield _standing(held.append_column("emptied", _emptied(held, truncates)))


def _standing(rows: pa.Table) -> pa.Table:
    """The rows not removed by a truncate."""
    return rows.filter(pc.equal(rows["emptied"], 0)).select(ITEM_COLUMNS)


def _emptied(items: pa.Table, truncates: Truncates) -> pa.Array:
    """For each item, how many later truncates remove its row."""
    if not truncates:
        return pa.repeat(0, len(items))
    columns = (items[name].to_pylist() for name in ITEM_ORDER)
    return pa.array([truncates.after(key, (tx, op)) for key, tx, op in zip(*columns, strict=True)], pa.int64())


def _fold(items: pa.Table) -> pa.Table:
    """The rows of all items, including those that a truncate removes later, sorted by key."""
    continues = _continues(items)
    _require_rows(items, continues)
    is_alone = pc.invert(pc.or_(continues, pa.concat_arrays([continues[1:], pa.array([False])])))
    is_insert, is_delete = (pc.equal(items["operation"], name) for name in ("insert", "delete"))
    inserted = items.filter(pc.and_(is_alone, is_insert))
    others = items.filter(pc.invert(pc.and_(is_alone, pc.or_(is_insert, is_delete))))
    if not len(others):
        return inserted
    return pa.concat_tables([inserted, _folded(others)]).sort_by([(name, "ascending") for name in ITEM_ORDER])


def _continues(items: pa.Table) -> pa.Array:
    """Whether each item concerns the same row as the previous one, without a truncate between them."""
    key, emptied = (items[name].combine_chunks() for name in ("key", "emptied"))
    same = pc.and_(pc.equal(key[1:], key[:-1]), pc.equal(emptied[1:], emptied[:-1]))
    return pa.concat_arrays([pa.array([False][: len(items)]), same])


def _require_rows(items: pa.Table, continues: pa.Array) -> None:
    """Raise ``DecodeError`` for an update without a row."""
    operation = items["operation"].combine_chunks()
    after_delete = pa.concat_arrays([pa.array([False][: len(items)]), pc.equal(operation[:-1], "delete")])
    has_row = pc.and_(continues, pc.invert(after_delete))
    wrong = items.filter(pc.and_not(pc.equal(operation, "update"), has_row))
    if len(wrong):
        offset = LogOffset(*(wrong[name][0].as_py() for name in ROW_ORDER))
        raise DecodeError(f"at {offset}: {UPDATE_WITHOUT_INSERT}")


def _folded(items: pa.Table) -> pa.Table:
    """The rows of items by ``fold``, which treats a row before and after a truncate as two."""
    columns = {name: items[name].to_pylist() for name in items.column_names}
    rows = [f"{emptied} {key}" for emptied, key in zip(columns["emptied"], columns["key"], strict=True)]
    folded = fold(zip(columns["operation"], rows, columns["value"], strict=True))
    is_insert = (operation == "insert" for operation in columns["operation"])
    inserts = {row: at for at, (row, inserts) in enumerate(zip(rows, is_insert, strict=True)) if inserts}
    values = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in folded.values()]
    found = items.take(pa.array([inserts[row] for row in folded], pa.int64())).drop_columns(["value"])
    return found.append_column("value", pa.array(values, items["value"].type)).select(items.column_names)
