"""A source's registry entries after a major upgrade, with the identities assigned by pg_upgrade.

The tables are unchanged: nothing has committed on the old server since they were compared with its catalog
(:mod:`flushtracker.capture.source.upgrade_drain`). Alterations on the new server are found as usual, because altered
objects keep their old identities in the entries (:mod:`flushtracker.shapes.carried_binding`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from flushtracker.capture.shapes.shape_registry import SourceEntries
from flushtracker.shapes.carried_binding import IsCarried, carried_partition, carried_table
from flushtracker.shapes.table_binding import TableBinding
from flushtracker.wal.mvcc_snapshot import CatalogRow


class UpgradedTables(Protocol):
    def bindings(self, oids: Iterable[int]) -> Mapping[int, TableBinding]: ...

    def publication_path(self, oids: Iterable[int]) -> Mapping[int, frozenset[CatalogRow]]: ...


def carried_entries(entries: SourceEntries, tables: UpgradedTables, is_carried: IsCarried) -> SourceEntries:
    """The entries of tables and partitions with the new identities; those of dropped objects are unchanged."""
    oids = [entry.binding.oid for entry in entries.tables]
    now = tables.bindings(oids)
    # A partition created since has new rows in the catalog, which do not affect the others.
    member_oids = {entry.binding.oid for entry in entries.partitions}
    publishing = tables.publication_path({*oids, *member_oids})
    as_before = {oid: all(is_carried(row.xid) for row in rows) for oid, rows in publishing.items()}
    members = {(oid, each.oid): each for oid, binding in now.items() for each in binding.partitions}
    return replace(
        entries,
        tables=tuple(
            replace(
                entry,
                binding=carried_table(
                    entry.binding,
                    now[entry.binding.oid],
                    is_carried,
                    is_published_as_before=as_before.get(entry.binding.oid, False),
                ),
            )
            if entry.binding.oid in now
            else entry
            for entry in entries.tables
        ),
        partitions=tuple(
            replace(
                entry,
                binding=carried_partition(
                    entry.binding,
                    members.get((entry.table_oid, entry.binding.oid)),
                    is_carried,
                    is_published_as_before=as_before.get(entry.binding.oid, False),
                ),
            )
            for entry in entries.partitions
        ),
    )


def carried_publication(before: str, now: str, is_carried: IsCarried) -> str:
    """The publication's version, which ends in the xid of its catalog row; a different version ends all shapes."""
    return now if is_carried(int(now.rpartition("/")[2])) else before
