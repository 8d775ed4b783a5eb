"""Which tables count as rewritten, and which shapes that ends."""

from dataclasses import replace

import pytest

from flushtracker.shapes.table_binding import (
    ColumnBinding,
    PartitionBinding,
    TableBinding,
    publication_reason,
    reason_to_end,
    rewritten,
)
from tests.support.key_bindings import ID_KEY

LEAF = PartitionBinding(8, ("public", "p"), 50, "/9", published_by=("all tables",), toast=51)
COLUMNS = (ColumnBinding(1, "id", 23, -1, 5), ColumnBinding(2, "v", 25, -1, 5))
TABLE = TableBinding(7, ("public", "t"), ID_KEY, COLUMNS, storage=40, toast=41, published_by=("all tables",))
ROOT = replace(TABLE, storage=0, toast=0, is_partitioned=True, partitions=(LEAF,))


@pytest.mark.parametrize(
    ("before", "after", "is_rewritten"),
    [
        ((40, 41, False), (40, 41, False), False),
        ((40, 41, False), (60, 41, False), False),
        ((40, 41, False), (60, 61, False), True),
        ((40, 41, False), (60, 61, True), True),
        ((40, 0, False), (40, 41, False), False),
        ((40, 0, False), (60, 61, False), True),
        ((40, 41, False), (60, 0, True), True),
        ((40, 0, False), (60, 0, True), False),
        ((40, 0, True), (60, 0, False), True),
    ],
    ids=str,
)
def test_only_alter_table_rewrites_rows(
    before: tuple[int, int, bool], after: tuple[int, int, bool], *, is_rewritten: bool
) -> None:
    """VACUUM FULL, CLUSTER and TRUNCATE keep the TOAST table; without one, only a TRUNCATE is told apart."""
    bound, now = (
        replace(TABLE, storage=storage, toast=toast, is_truncated=is_truncated)
        for storage, toast, is_truncated in (before, after)
    )
    assert rewritten(bound, now) == (TABLE.table if is_rewritten else None)
    reason = reason_to_end({"id"}, bound, now)
    assert (reason is not None) == is_rewritten
    assert not is_rewritten or "the rows of table public.t were rewritten" in str(reason)
    old, new = (
        replace(ROOT, partitions=(replace(LEAF, storage=storage, toast=toast, is_truncated=is_truncated),))
        for storage, toast, is_truncated in (before, after)
    )
    assert rewritten(old, new) == (LEAF.table if is_rewritten else None)
    assert rewritten(ROOT, replace(ROOT, partitions=())) is None
    assert rewritten(replace(ROOT, partitions=()), ROOT) is None


def test_a_rewrite_that_a_column_explains_names_the_column() -> None:
    """It ends a shape that does not use the column, too: the table may have been unlogged before."""
    altered = replace(COLUMNS[1], version=9)
    now = replace(TABLE, storage=60, toast=61, columns=(COLUMNS[0], altered))
    assert "column v of table public.t was altered, and its rows" in str(reason_to_end(None, TABLE, now))
    assert "the rows of table public.t were rewritten" in str(reason_to_end({"id"}, TABLE, now))
    vacuumed = replace(now, toast=41)
    assert reason_to_end(None, TABLE, vacuumed) is None


@pytest.mark.parametrize("table", [TABLE, ROOT], ids=["table", "partitions"])
def test_a_column_that_is_added_before_the_rows_are_copied_may_have_filled_them(table: TableBinding) -> None:
    """VACUUM FULL and CLUSTER keep the TOAST table, but then nothing shows that the column had a default."""
    copied = replace(
        table, storage=table.storage and 60, partitions=tuple(replace(each, storage=60) for each in table.partitions)
    )
    now = replace(copied, columns=(*COLUMNS, ColumnBinding(3, "n", 23, -1, 9)))
    assert "column n was added to table public.t with a value" in str(reason_to_end(None, table, now))
    assert reason_to_end({"id", "v"}, table, now) is None
    assert reason_to_end(None, table, replace(table, columns=now.columns)) is None
    assert reason_to_end(None, table, copied) is None


def test_a_link_to_the_ancestor_that_publishes_a_table_is_part_of_how_it_is_published() -> None:
    """Another way that was there all the time is enough."""
    bound = replace(TABLE, published_by=("table 5/745",))
    again = replace(TABLE, published_by=("table 5/790",))
    assert "was not in the publication for a time" in str(publication_reason(bound, again))
    before, after = (replace(each, published_by=(*each.published_by, "table 9")) for each in (bound, again))
    assert publication_reason(before, after) is None
