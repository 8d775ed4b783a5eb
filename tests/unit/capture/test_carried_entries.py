"""A source's tables after a major upgrade: what was altered on the new server, before capture was there, is found."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

import pytest

from flushtracker.capture.shapes.carried_entries import carried_entries
from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.events.registry_events import PartitionEntry, TableEntry
from flushtracker.shapes.key_binding import KeyBinding
from flushtracker.shapes.table_binding import ColumnBinding, PartitionBinding, TableBinding, reason_to_end
from flushtracker.wal.mvcc_snapshot import CatalogRow
from flushtracker.wal.xid import is_before
from tests.support.quiet_server import QuietServer

OLD_XID: Final = 700
PG_UPGRADE: Final = 800
OWN_XID: Final = 900
"""The first xid of the new server that pg_upgrade has not used."""
SINCE: Final = 950
EVENTS: Final = 100


def table(xid: int, published_by: str, partitions: Collection[PartitionBinding]) -> TableBinding:
    """The partitioned table, with catalog rows that were written by ``xid``."""
    return TableBinding(
        EVENTS,
        ("public", "events"),
        (KeyBinding(5000 + xid, ("id",), 101, xid, 101, is_primary=True),),
        (ColumnBinding(1, "id", 23, -1, xid),),
        tuple(partitions),
        storage=0,
        attributes=1,
        schema_since=xid,
        is_partitioned=True,
        published_by=(published_by,),
        toast=0,
    )


def partition(oid: int, xid: int, published_by: str) -> PartitionBinding:
    return PartitionBinding(
        oid, ("public", f"p{oid}"), oid, f"/{xid}", xid, is_logged=True, published_by=(published_by,), toast=0
    )


OLD: Final = table(OLD_XID, "table 16400", [partition(oid, OLD_XID, "table 16400") for oid in (110, 120)])


class Upgraded(QuietServer):
    """The new server: ``now`` is the table there, and ``published_xid`` has written the row that publishes it."""

    def __init__(self, now: TableBinding, published_xid: int = PG_UPGRADE) -> None:
        super().__init__()
        self._now = now
        self._published_xid = published_xid

    def bindings(self, _oids: Iterable[int]) -> dict[int, TableBinding]:
        return {EVENTS: self._now}

    def publication_rows(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        """With those of what is below, as the server gives them for a table that may be partly sent."""
        links = [row for path in self._links().values() for row in path]
        return dict.fromkeys(oids, frozenset({*self._root_rows(), *links}))

    def publication_path(self, oids: Iterable[int]) -> dict[int, frozenset[CatalogRow]]:
        links = self._links()
        return {oid: frozenset({*self._root_rows(), *links.get(oid, ())}) for oid in oids}

    def _root_rows(self) -> list[CatalogRow]:
        return [CatalogRow("publication 1", PG_UPGRADE), CatalogRow("table 16999", self._published_xid)]

    def _links(self) -> dict[int, list[CatalogRow]]:
        return {
            each.oid: [CatalogRow(f"partition {each.oid} of {EVENTS}", int(each.attached[1:]))]
            for each in self._now.partitions
        }


def reason(server: Upgraded) -> str | None:
    """Why shapes on the table would end, if they would."""
    entries = SourceEntries(
        None,
        (),
        (TableEntry("s", OLD),),
        tuple(PartitionEntry("s", EVENTS, each, None) for each in OLD.partitions),
    )
    carried = carried_entries(entries, server, lambda xid: is_before(xid, OWN_XID))
    bound = replace(carried.tables[0].binding, partitions=tuple(entry.binding for entry in carried.partitions))
    return reason_to_end(None, bound, server.bindings([EVENTS])[EVENTS])


def upgraded_table(*more: PartitionBinding) -> TableBinding:
    kept = [partition(oid, PG_UPGRADE, "table 16999") for oid in (110, 120)]
    return table(PG_UPGRADE, "table 16999", [*kept, *more])


def test_shapes_live_on_although_a_partition_was_created_before_capture_started() -> None:
    """As daily partitions are: CREATE TABLE … PARTITION OF ends no shape without an upgrade either."""
    assert reason(Upgraded(upgraded_table())) is None
    assert reason(Upgraded(upgraded_table(partition(130, SINCE, "table 16999")))) is None


@pytest.mark.parametrize("more", [(), (partition(130, SINCE, "table 16999"),)], ids=["alone", "with a new partition"])
def test_a_table_that_was_out_of_the_publication_ends_its_shapes(more: tuple[PartitionBinding, ...]) -> None:
    """What publishes the table was written by somebody else than pg_upgrade."""
    assert "was not in the publication for a time" in (reason(Upgraded(upgraded_table(*more), SINCE)) or "")


def test_a_partition_that_was_attached_again_ends_the_shapes() -> None:
    """Meanwhile its changes were not the table's."""
    again = table(
        *(PG_UPGRADE, "table 16999"),
        [
            partition(110, PG_UPGRADE, "table 16999"),
            replace(partition(120, PG_UPGRADE, "table 16999"), attached="/950"),
        ],
    )
    assert "detached and attached again" in (reason(Upgraded(again)) or "")
