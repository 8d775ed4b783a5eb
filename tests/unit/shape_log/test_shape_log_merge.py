"""Merging sorted rows and cutting them into files, against sorting everything at once."""

import random
from collections.abc import Iterable, Iterator
from itertools import groupby

import pyarrow as pa
import pytest

from flushtracker.shape_log.table.runs import cut, merged, sort, sorted_blocks
from tests.support.shape_log_rows import arrow, item

_ANY_BYTES = 1 << 40


def rows_of(draw: random.Random, count: int, shapes: int) -> pa.Table:
    return arrow(
        item((draw.randrange(1000), draw.randrange(1000)), "insert", "k", shape_id=f"s{draw.randrange(shapes)}")
        for _ in range(count)
    )


def in_parts(draw: random.Random, rows: pa.Table, most: int = 12) -> Iterator[pa.Table]:
    """A table in parts of random sizes, some of them empty."""
    place = 0
    while place < len(rows):
        size = draw.randint(0, most)
        yield rows.slice(place, size)
        place += size


def files(parts: Iterable[tuple[int, pa.Table]]) -> list[pa.Table]:
    """The rows of each file, whose numbers have no gap."""
    found = [(number, [rows for _, rows in group]) for number, group in groupby(parts, lambda part: part[0])]
    assert [number for number, _ in found] == list(range(len(found)))
    return [pa.concat_tables(tables) for _, tables in found]


@pytest.mark.parametrize("seed", range(20))
def test_merging_gives_what_sorting_everything_gives(seed: int) -> None:
    """Whatever the sources have, and however they are cut; the files of any size have every row once."""
    draw = random.Random(seed)  # noqa: S311  reproducible rows
    tables = [rows_of(draw, draw.randint(0, 60), draw.randint(1, 9)) for _ in range(draw.randint(1, 5))]
    everything = sort(pa.concat_tables(tables))
    for rows_per_file in (1, 2, 7, 1000):
        first = sorted_blocks([*in_parts(draw, tables[0]), tables[0].slice(0, 0)], draw.choice([1, 300, 10_000]))
        sources = [first, *(in_parts(draw, sort(table)) for table in tables[1:])]
        found = files(cut(merged(sources), rows_per_file, _ANY_BYTES))
        assert all(0 < len(part) <= max(1, rows_per_file * 5 // 4) for part in found)
        assert pa.concat_tables([everything.slice(0, 0), *found]) == everything


def test_cuts_lie_between_shapes_where_they_can() -> None:
    """A shape that has less than a quarter of a file is in one file, however the rows arrive; a larger one is cut."""
    shape_ids = [*("a" * 8), *("b" * 2), *("c" * 7), *("d" * 40), *("e" * 2), *("f" * 9), "g"]
    rows = sort(arrow(item((n, 0), "insert", "k", shape_id=shape_id) for n, shape_id in enumerate(shape_ids)))
    expected = ["a" * 8 + "bb", "c" * 7 + "d" * 5, "d" * 12, "d" * 12, "d" * 11, "ee" + "f" * 9, "g"]
    for seed in range(20):
        blocks = in_parts(random.Random(seed), rows)  # noqa: S311  reproducible parts
        assert ["".join(part["shape_id"].to_pylist()) for part in files(cut(blocks, 10, _ANY_BYTES))] == expected


def test_a_file_ends_before_the_block_that_makes_it_too_large() -> None:
    """Few rows may be large, and a reader may hold a file in memory; each block is in some file."""
    rows = arrow(item((n, 0), "insert", "k", {"text": "x" * 1000}) for n in range(10))
    blocks = [rows.slice(n, 1) for n in range(10)]
    assert [len(part) for part in files(cut(blocks, 1000, 3 * blocks[0].nbytes + 1))] == [3, 3, 3, 1]
