"""Merging sorted rows and cutting them into files, against sorting everything at once."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from flushtracker.delta.log.merge import cut, merged, sort
from tests.support.shape_log_rows import arrow, item


def rows_of(draw: random.Random, count: int, shapes: int) -> pa.Table:
    return arrow(
        item((draw.randrange(1000), draw.randrange(1000)), "insert", "k", shape_id=f"s{draw.randrange(shapes)}")
        for _ in range(count)
    )


def in_parts(draw: random.Random, rows: pa.Table) -> Iterator[pa.Table]:
    """A sorted table in parts of random sizes, some of them empty."""
    place = 0
    while place < len(rows):
        size = draw.randint(0, 12)
        yield rows.slice(place, size)
        place += size


@pytest.mark.parametrize("seed", range(20))
def test_merging_gives_what_sorting_everything_gives(seed: int) -> None:
    """Whatever the sources have, and however they are cut; the files of any size have every row once."""
    draw = random.Random(seed)  # noqa: S311  reproducible rows
    tables = [sort(rows_of(draw, draw.randint(0, 60), draw.randint(1, 9))) for _ in range(draw.randint(1, 5))]
    everything = sort(pa.concat_tables(tables))
    for rows_per_file in (1, 2, 7, 1000):
        found = list(cut(merged([in_parts(draw, table) for table in tables]), rows_per_file))
        assert all(0 < len(part) <= 2 * rows_per_file for part in found)
        assert pa.concat_tables([everything.slice(0, 0), *found]) == everything


def test_cuts_lie_between_shapes_where_they_can() -> None:
    """A shape that is smaller than a file is in one file; a larger one is cut."""
    shape_ids = [*("a" * 8), *("b" * 9), *("c" * 7), *("d" * 40), *("e" * 5)]
    rows = sort(arrow(item((n, 0), "insert", "k", shape_id=shape_id) for n, shape_id in enumerate(shape_ids)))
    parts = ["".join(part["shape_id"].to_pylist()) for part in cut(iter([rows]), 10)]
    assert parts == ["a" * 8, "b" * 9, "c" * 7, "d" * 10, "d" * 10, "d" * 10, "d" * 10 + "e" * 5]
