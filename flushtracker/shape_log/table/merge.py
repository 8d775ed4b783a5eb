"""Sorts and merges rows of the shape log, and divides them into files, with one block per source in memory."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

ORDER: Final = ("shape_id", "source", "tx_offset", "op_offset")

_Key = tuple[str, str, int, int]


def sort(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ORDER]).combine_chunks()


def sorted_blocks(tables: list[pa.Table], block_bytes: int) -> Iterator[pa.Table]:
    """All rows of the tables in order, in tables of about ``block_bytes``; empties the list to free memory."""
    if not tables:
        return
    rows = pa.concat_tables(tables).combine_chunks()
    tables.clear()
    order = pc.sort_indices(rows, [(name, "ascending") for name in ORDER])
    step = max(1, len(rows) * block_bytes // max(1, rows.nbytes))
    for start in range(0, len(rows), step):
        yield rows.take(order.slice(start, step))


def merged(sources: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """All rows of the sources, in order. Each source must yield sorted tables in order."""
    heads: dict[int, pa.Table] = {}
    waiting = set(range(len(sources)))
    while True:
        for number in sorted(waiting):
            if (table := _next(sources[number])) is not None:
                heads[number] = table
        if not heads:
            return
        # All rows up to this one have been yielded by their sources.
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


def cut(blocks: Iterable[pa.Table], rows_per_file: int, bytes_per_file: int) -> Iterator[tuple[int, pa.Table]]:
    """Number the file that each row goes to, from 0.

    A file ends at the first shape after ``rows_per_file`` rows, at the latest after a quarter more. It also ends before
    a block that would take it above ``bytes_per_file``.
    """
    number = rows = size = 0
    last_id: str | None = None
    for block in blocks:
        rest = block
        if size and size + block.nbytes > bytes_per_file:
            number, rows, size = number + 1, 0, 0
        while len(rest):
            end = _file_end(rest, last_id, rows_per_file - rows, rows_per_file + rows_per_file // 4 - rows)
            part = rest if end is None else rest.slice(0, end)
            if len(part):
                yield number, part
                last_id = part["shape_id"][-1].as_py()
            rest = rest.slice(len(part))
            rows, size = rows + len(part), size + part.nbytes
            if end is not None:
                number, rows, size = number + 1, 0, 0


def _next(source: Iterator[pa.Table]) -> pa.Table | None:
    return next((table for table in source if len(table)), None)


def _end(table: pa.Table, bound: _Key) -> int:
    return bisect_right(range(len(table)), bound, key=lambda index: _key(table, index))


def _key(table: pa.Table, index: int) -> _Key:
    shape_id, source, tx, op = (table[name][index].as_py() for name in ORDER)
    return shape_id, source, tx, op


def _file_end(rows: pa.Table, last_id: str | None, least: int, most: int) -> int | None:
    """The index at which a file ends in sorted rows that follow those of ``last_id``, after ``least`` rows; ``None`` if
    later.
    """
    if least >= len(rows):
        return None
    shape_ids = rows["shape_id"]
    last_id = shape_ids[least - 1].as_py() if least > 0 else last_id
    end = min(most, bisect_right(range(len(rows)), last_id or "", key=lambda index: shape_ids[index].as_py()))
    return end if end < len(rows) or end == most else None
