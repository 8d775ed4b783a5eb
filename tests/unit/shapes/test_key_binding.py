"""Which changes to a table's keys a shape survives."""

from dataclasses import replace
from typing import Final

import pytest

from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, TableBinding, reason_to_end

PRIMARY: Final = KeyBinding(oid=60, columns=("id",), index=61, version=700, storage=62, is_primary=True)
UNIQUE: Final = KeyBinding(oid=70, columns=("id",), index=71, version=700, storage=72)
PLAIN: Final = KeyBinding(oid=80, columns=("id",), index=80, version=700, storage=82)
BOTH: Final = KeyBinding(oid=90, columns=("region", "id"), index=91, version=700, storage=92)
_ALTERED: Final = "was dropped and created again, or altered"


def table(*keys: KeyBinding, version: int = 700) -> TableBinding:
    columns = (ColumnBinding(1, "id", 23, -1, version), ColumnBinding(2, "region", 25, -1, 700))
    binding = TableBinding(7, ("public", "t"), keys, columns)
    return replace(binding, published_by=("all tables",))


@pytest.mark.parametrize(
    ("bound", "now"),
    [
        ((PRIMARY,), (PRIMARY,)),
        ((PRIMARY,), (replace(PRIMARY, index=63, version=900, storage=64),)),
        ((PRIMARY, PLAIN), (PLAIN,)),
        ((PRIMARY, PLAIN), (replace(PRIMARY, oid=65, index=66), PLAIN)),
        ((PLAIN,), (replace(PLAIN, oid=83, is_primary=True),)),
        ((PLAIN,), (replace(PLAIN, storage=84),)),
        ((PLAIN,), (replace(PLAIN, version=900),)),
        ((PRIMARY, BOTH), (BOTH,)),
    ],
    ids=[
        *("nothing", "reindexed concurrently", "primary key dropped beside an index"),
        *("primary key created again beside an index", "index made a primary key", "index rebuilt"),
        *("index altered", "other index with another column of the key"),
    ],
)
def test_a_key_lasts_while_one_index_ensures_it(bound: tuple[KeyBinding, ...], now: tuple[KeyBinding, ...]) -> None:
    """It need not be the same index from first to last, but one must have been there all the time."""
    assert reason_to_end(None, table(*bound), table(*now), ("id", "region")) is None


@pytest.mark.parametrize(
    ("bound", "now", "reason"),
    [
        ((PRIMARY,), (), "may be that of several rows"),
        ((PRIMARY,), (BOTH,), "may be that of several rows"),
        ((PRIMARY,), (UNIQUE,), _ALTERED),
        ((PRIMARY,), (replace(PRIMARY, oid=65, index=66),), _ALTERED),
        ((PLAIN,), (replace(PLAIN, oid=85, index=85),), _ALTERED),
        ((PLAIN,), (replace(PLAIN, version=900, storage=84),), _ALTERED),
        ((PLAIN,), (replace(PLAIN, columns=("key",)),), "may be that of several rows"),
    ],
    ids=["dropped", "of other columns", "replaced", "created again", "index created again", "disabled", "renamed"],
)
def test_a_key_that_may_have_been_that_of_two_rows_ends_the_shape(
    bound: tuple[KeyBinding, ...], now: tuple[KeyBinding, ...], reason: str
) -> None:
    """Even if a later index is over the same columns."""
    found = reason_to_end(None, table(*bound), table(*now), ("id",))
    assert str(found).startswith("the key of table public.t (id) ")
    assert reason in str(found)


@pytest.mark.parametrize("key", [UNIQUE, PLAIN])
def test_a_column_that_may_have_been_null_ends_the_shape(key: KeyBinding) -> None:
    """Any number of rows may have NULL in a unique index. A primary key does not allow it."""
    assert _ALTERED in str(reason_to_end(None, table(key), table(key, version=900)))
    assert reason_to_end(None, table(PRIMARY), table(PRIMARY, version=900)) is None
