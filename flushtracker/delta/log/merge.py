"""Merges sorted rows of the shape log into new files, with one file of each run in memory.

The order is (shape_id, source, tx_offset, op_offset). A file ends between two shapes where possible, so that most
shapes are in one file of each run.

A merge only rearranges: the new files have exactly the rows of those that they replace.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

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
