"""Rows of the shape log that no reader counts any more, because of the shapes' snapshots; a merge leaves them out.

These are items of transactions that the shape's snapshot contains, and the rows of earlier snapshots. Whoever appends
another snapshot meanwhile loses nothing by it: that one contains all that the snapshots before contain, and has a
greater attempt.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from flushtracker.delta.log.shape_log_files import LogFile, ShapeKey
from flushtracker.delta.log.snapshot_attempts import IS_SNAPSHOT
from flushtracker.delta.storage import literal, query_rows
from flushtracker.shape_log.log_row import COMMIT
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot

_ENDS: Final = f"SELECT source, shape_id, chunk, value FROM rows WHERE {IS_SNAPSHOT}"  # noqa: S608  no user's values


class CurrentSnapshots:
    """The snapshot of each shape of a log, of which each file is read once; raises ``DeltaError`` or ``OSError``."""

    def __init__(self) -> None:
        self._known = set[str]()
        self._snapshots: dict[ShapeKey, ShapeSnapshot] = {}

    def at(self, table: DeltaTable, files: Sequence[LogFile]) -> Mapping[ShapeKey, ShapeSnapshot]:
        """Those in the version of ``table`` that has these ``files``; raises ``DecodeError`` if one cannot be read."""
        new = [file for file in files if file.path not in self._known and file.may_have_snapshot]
        if new:
            for row in query_rows(table, _ENDS + _of_shapes(new)).to_pylist():
                snapshot = ShapeSnapshot.parse(row["chunk"], row["value"])
                before = self._snapshots.get(key := (row["source"], row["shape_id"]))
                if before is None or before.attempt < snapshot.attempt:
                    self._snapshots[key] = snapshot
        self._known = {file.path for file in files}
        return self._snapshots

    def add(self, paths: Iterable[str]) -> None:
        """These files have only rows of files that are known."""
        self._known.update(paths)


def _of_shapes(files: list[LogFile]) -> str:
    """The condition for the shapes that the files may have: files of other shapes are not opened again."""
    first, last = [file.first_id for file in files], [file.last_id for file in files]
    if None in first or None in last:
        return ""
    least, greatest = min(filter(None, first), default=""), max(filter(None, last), default="")
    return f" AND shape_id >= {literal(least)} AND shape_id <= {literal(greatest)}"


def without_uncounted(pieces: Iterable[pa.Table], snapshots: Mapping[ShapeKey, ShapeSnapshot]) -> Iterator[pa.Table]:
    """The rows of sorted ``pieces`` but those that no reader counts.

    Rows that end a transaction stay, and items of which the piece has no such row after them: the last row of a shape
    says how far its log goes, and a writer relies on it.
    """
    for piece in pieces:
        dropped = [
            _uncounted(piece.slice(start, length), snapshots[key], start)
            for key, start, length in _shapes(piece)
            if key in snapshots
        ]
        places = pa.chunked_array(dropped, pa.int64())
        if len(places):
            yield piece.filter(pc.invert(pc.is_in(pa.array(range(len(piece)), pa.int64()), places)))
        else:
            yield piece


def _shapes(rows: pa.Table) -> Iterator[tuple[ShapeKey, int, int]]:
    """Each shape of the sorted rows, with the place and the number of its rows."""
    if not len(rows):
        return
    # Arrow cannot compare columns that have no chunk, which a slice may be.
    ids, sources = (pa.concat_arrays(rows[name].chunks) for name in ("shape_id", "source"))
    is_other = pc.or_(pc.not_equal(ids[1:], ids[:-1]), pc.not_equal(sources[1:], sources[:-1]))
    starts = [0, *(place + 1 for place in pc.indices_nonzero(is_other).to_pylist()), len(rows)]
    for start, end in pairwise(starts):
        yield (sources[start].as_py(), ids[start].as_py()), start, end - start


def _uncounted(rows: pa.Table, snapshot: ShapeSnapshot, start: int) -> pa.Array:
    """The places of the rows of one shape that are not counted; the first row's place is ``start``."""
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
