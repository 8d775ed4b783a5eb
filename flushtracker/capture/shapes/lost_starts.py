"""Finds the registry entries that a failover affects, because they have a position beyond the switch point.

Everything published lies before the switch point, but the registry may have positions beyond it. The promoted server
has other transactions at such positions.

- A shape that is added starts after the end of the server's flushed WAL, which may be past what a standby has. The
  promoted server's transactions between the switch point and that start would be in no shape.
- A partition *joins* a table with the first transaction that changes it, and is *lost* with the first one after it has
  left. If the failover lost that transaction, it was not published, and another one takes its place.
- A partition was found to be empty, or a column to be altered, by WAL that the failover lost. That may differ on the
  promoted server, so the shapes on the table end.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from flushtracker.events.registry_events import PartitionEntry, ShapeEntry, TableEntry
from flushtracker.wal.log_offset import LogOffset

LOST_START: Final = "it was added just before a failover, which may have lost what its snapshot has"
LOST_TABLE: Final = "its table, or a partition of it, was altered just before a failover, which may have lost that"


class LostStarts(NamedTuple):
    """``moved``: shapes without readers so far, which will start at the switch point instead; ``ended``: the others.

    The others may have a snapshot of the old primary, with transactions that the failover has lost. Or an earlier
    incarnation ends beyond the switch point, and the next one must not begin before that end.
    """

    moved: tuple[ShapeEntry, ...]
    ended: tuple[str, ...]


def lost_starts(entries: Iterable[ShapeEntry], switch: int) -> LostStarts:
    """Divide the live shapes that start past ``switch``.

    A shape that starts exactly at the switch lost nothing: the first record of a timeline is never a commit.
    """
    beyond = [entry for entry in entries if entry.removed_at is None and entry.starts_after.tx_offset > switch]
    moved = [entry for entry in beyond if entry.definition.incarnation == 1 and not entry.starts_visible]
    ids = {entry.definition.id for entry in moved}
    return LostStarts(
        tuple(replace(entry, starts_after=LogOffset.just_before(switch)) for entry in moved),
        tuple(entry.definition.id for entry in beyond if entry.definition.id not in ids),
    )


def moved_partitions(entries: Iterable[PartitionEntry], switch: int) -> list[PartitionEntry]:
    """The entries of partitions that joined, left or were lost at or past ``switch``, with that undone."""
    moved = []
    for entry in entries:
        is_joined = entry.joined is not None and entry.joined < switch
        is_lost = entry.lost_with is not None and entry.lost_with < switch
        left_at = None if entry.left_at is None else min(entry.left_at, switch)
        new = replace(
            entry,
            joined=entry.joined if is_joined else None,
            lost_with=entry.lost_with if is_lost else None,
            left_at=entry.left_at if is_lost else left_at,
        )
        if new != entry:
            moved.append(new)
    return moved


def lost_tables(tables: Iterable[TableEntry], partitions: Iterable[PartitionEntry], switch: int) -> set[int]:
    """The OIDs of the tables about which something was recorded at or past ``switch``."""
    found = {entry.table_oid for entry in partitions if entry.empty_at is not None and entry.empty_at >= switch}
    return found | {
        entry.binding.oid
        for entry in tables
        if any(column.altered_before >= switch for column in entry.binding.columns)
    }
