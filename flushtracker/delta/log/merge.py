"""Merges sorted rows of the shape log into new files, with one file of each run in memory.

The order is (shape_id, source, tx_offset, op_offset). A file ends between two shapes where possible, so that most
shapes are in one file of each run.

A merge leaves out the rows that no reader counts any more: items of transactions that the shape's snapshot contains,
and the rows of earlier snapshots. A snapshot that is appended meanwhile loses nothing by this: it contains all that the
earlier ones contain, and has a greater attempt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from flushtracker.delta.log.files import ShapeKey
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot

ORDER: Final = ("shape_id", "source", "tx_offset", "op_offset")

_Key = tuple[str, str, int, int]


def sort(rows: pa.Table) -> pa.Table:
    """The rows in the order of a run."""
    return rows.sort_by([(name, "ascending") for name in ORDER]).combine_chunks()


def merged(sources: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """All rows of the sources, in order. The tables that one source yields are sorted, and follow each other."""
    heads: dict[int, pa.Table] = {}
    waiting = set(range(len(sources)))
    while True:
        for number in sorted(waiting):
            if (table := _next(sources[number])) is not None:
                heads[number] = table
        if not heads:
            return
        # No source has a row before this one that it has not yielded yet.
        bound = min(_key(table, len(table) - 1) for table in heads.values())
        parts = []
        waiting = set()
        for number, table in list(heads.items()):
            end = _end(table, bound)
            parts.append(table.slice(0, end))
            if end == len(table):
                waiting.add(number)
                del heads[number]
            else:
                heads[number] = table.slice(end)
        filled = [part for part in parts if len(part)]
        yield filled[0] if len(filled) == 1 else sort(pa.concat_tables(filled))


def without_uncounted(pieces: Iterable[pa.Table], snapshots: Mapping[ShapeKey, ShapeSnapshot]) -> Iterator[pa.Table]:
    """The rows of sorted ``pieces``, without those that no reader counts.

    ``commit`` rows stay, and so do items that no ``commit`` row follows in the piece: the last row of a shape says how
    far its log goes, and a writer relies on it.
    """
    for piece in pieces:
        dropped = [
            _uncounted(piece.slice(start, length), snapshots[key], start)
            for key, start, length in _shapes(piece)
            if key in snapshots
        ]
        indices = pa.chunked_array(dropped, pa.int64())
        if len(indices):
            yield piece.filter(pc.invert(pc.is_in(pa.array(range(len(piece)), pa.int64()), indices)))
        else:
            yield piece


def cut(pieces: Iterator[pa.Table], rows_per_file: int) -> Iterator[pa.Table]:
    """Cut sorted pieces into files of about ``rows_per_file`` rows."""
    pending: pa.Table | None = None
    for piece in pieces:
        pending = piece if pending is None else pa.concat_tables([pending, piece]).combine_chunks()
        while len(pending) > 2 * rows_per_file:
            end = _file_end(pending, rows_per_file)
            yield pending.slice(0, end)
            pending = pending.slice(end)
    if pending is not None and len(pending):
        yield pending


def _next(source: Iterator[pa.Table]) -> pa.Table | None:
    return next((table for table in source if len(table)), None)


def _end(table: pa.Table, bound: _Key) -> int:
    return bisect_right(range(len(table)), bound, key=lambda index: _key(table, index))


def _key(table: pa.Table, index: int) -> _Key:
    shape_id, source, tx, op = (table[name][index].as_py() for name in ORDER)
    return shape_id, source, tx, op


def _shapes(rows: pa.Table) -> Iterator[tuple[ShapeKey, int, int]]:
    """Each shape of the sorted rows, with the index of its first row and the number of its rows."""
    if not len(rows):
        return
    # Arrow cannot compare columns that have no chunk, which a slice may be.
    ids, sources = (pa.concat_arrays(rows[name].chunks) for name in ("shape_id", "source"))
    is_other = pc.or_(pc.not_equal(ids[1:], ids[:-1]), pc.not_equal(sources[1:], sources[:-1]))
    starts = [0, *(index + 1 for index in pc.indices_nonzero(is_other).to_pylist()), len(rows)]
    for start, end in pairwise(starts):
        yield (sources[start].as_py(), ids[start].as_py()), start, end - start


def _uncounted(rows: pa.Table, snapshot: ShapeSnapshot, start: int) -> pa.Array:
    """The indices of the rows of one shape that are not counted; ``start`` is that of the first row."""
    tx, xids = rows["tx_offset"], rows["xid"]
    is_replaced = pc.and_(pc.equal(tx, 0), pc.less(rows["chunk"], snapshot.attempt))
    is_end = pc.equal(rows["operation"], COMMIT)
    last_end = pc.max(tx.filter(is_end)).as_py() or 0
    is_old = pc.and_(pc.greater(tx, 0), pc.less_equal(tx, min(last_end, snapshot.lsn)))
    is_item = pc.and_(is_old, pc.invert(is_end))
    unseen = snapshot.unseen
    found = xids.filter(is_item).unique().to_pylist()
    seen = [xid for xid in found if xid not in unseen and not snapshot.is_later(xid)]
    is_contained = pc.and_(is_item, pc.is_in(xids, pa.array(seen, pa.int64())))
    return pc.add(pc.indices_nonzero(pc.or_(is_replaced, is_contained)).cast(pa.int64()), start)


def _file_end(rows: pa.Table, wanted: int) -> int:
    """Where the shape that has row ``wanted`` starts, or ends, whichever is nearer; ``wanted`` if neither is near."""
    shape_ids = rows["shape_id"]

    def text(index: int) -> str:
        value: str = shape_ids[index].as_py()
        return value

    shape_id = text(wanted)
    first = bisect_left(range(len(rows)), shape_id, key=text)
    last = bisect_right(range(len(rows)), shape_id, key=text)
    near = min(first, last, key=lambda index: abs(index - wanted))
    return near if max(1, wanted // 2) <= near <= wanted + wanted // 2 else wanted
