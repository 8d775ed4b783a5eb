"""A relation from the stream against the binding of its table, by the order of the columns."""

from typing import Final

import pytest

from flushtracker.shapes.sent_relation import conflict_for, conflicts, since_first_bound
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding
from flushtracker.wal.changes import Column, Relation
from tests.support.key_bindings import ID_KEY

ROOT, LEAF, LSN = 7, 8, 1000
TEXT: Final = 25


def table(v: int = 700, u: int = 700, *, more: tuple[str, ...] = ()) -> TableBinding:
    """A table with the columns ``id``, ``v`` and ``u``, the last two in these versions, and with a partition."""
    columns = [ColumnBinding(1, "id", TEXT, -1, 700), ColumnBinding(2, "v", TEXT, -1, v)]
    columns += [ColumnBinding(3, "u", TEXT, -1, u)]
    columns += [ColumnBinding(number, name, TEXT, -1, 900) for number, name in enumerate(more, 4)]
    partitions = (PartitionBinding(LEAF, ("public", "p"), 5, "/9"),)
    return TableBinding(ROOT, ("public", "t"), ID_KEY, tuple(columns), partitions)


def relation(names: str, oid: int = ROOT) -> Relation:
    columns = tuple(Column(name, TEXT) for name in names.split())
    return Relation(oid, "public", "t" if oid == ROOT else "p", "default", columns)


def conflict(
    used: set[str] | None, bound: TableBinding, sent: Relation, order: tuple[str, ...] | None = None, lsn: int = LSN - 1
) -> str | None:
    return conflict_for(used, conflicts(bound, sent.table, sent, lsn, order))


def never() -> int:
    raise AssertionError("nothing was altered since")


ALTERED: Final = since_first_bound(table(), table(900, 900), lambda: LSN)
"""A table of which two columns were altered."""


@pytest.mark.parametrize(
    ("used", "sent", "ends"),
    [
        (None, "id u v", True),
        ({"id", "v"}, "id u v", True),
        ({"id"}, "id u v", False),
        ({"id", "v"}, "id other v", True),
        (None, "id v u", False),
        ({"id", "v"}, "id v", False),
    ],
    ids=[
        *("exchanged", "with an unlisted one", "both unlisted", "another one has the name", "as they are"),
        "before one was added",
    ],
)
def test_an_altered_column_must_be_in_its_place(used: set[str] | None, sent: str, *, ends: bool) -> None:
    """Its name and type alone would be those of the column that it was exchanged with."""
    reason = conflict(used, ALTERED, relation(sent))
    assert (reason is not None) == ends
    if reason is not None:
        assert "column v of table public.t was altered, and may have had another name for a time" in reason


def test_a_column_that_was_never_altered_may_be_anywhere() -> None:
    """It has had its name all the time; others may have been dropped since."""
    assert conflict({"id", "v"}, table(), relation("id gone v u")) is None


def test_a_partition_has_an_order_of_its_own() -> None:
    """In the order of the root its columns would be exchanged."""
    assert conflict(None, ALTERED, relation("u id v", LEAF), ("u", "id", "v")) is None
    assert "was altered" in str(conflict(None, ALTERED, relation("id v u", LEAF), ("u", "id", "v")))


def test_rows_of_later_transactions_have_the_names_of_now() -> None:
    """Columns that were dropped since may have been between them; an alteration long ago ends no shape then."""
    assert conflict({"id", "v"}, ALTERED, relation("id gone v u"), lsn=LSN - 1) is not None
    assert conflict({"id", "v"}, ALTERED, relation("id gone v u"), lsn=LSN) is None


def test_what_was_altered_once_stays_so() -> None:
    """The stream may be far behind; a new column was altered by nobody."""
    later = since_first_bound(ALTERED, table(900, 900, more=("n",)), never)
    assert [column.altered_before for column in later.columns] == [0, LSN, LSN, 0]
    assert later == table(900, 900, more=("n",)), "it is compared with the catalog, which does not know"
    again = since_first_bound(later, table(900, 950, more=("n",)), lambda: LSN + 5)
    assert [column.altered_before for column in again.columns] == [0, LSN, LSN + 5, 0]
