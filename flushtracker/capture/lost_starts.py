"""Which shapes a failover concerns because they begin beyond its switch point.

A shape that is added starts after the end of the server's flushed WAL, which may be past what a standby has. Nothing
was published of it then, as everything published lies before the switch point. The promoted server's transactions
between the switch point and the shape's start would be in no shape.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.wal.log_offset import LogOffset

LOST_START: Final = "it was added just before a failover, which may have lost what its snapshot has"


class LostStarts(NamedTuple):
    """``moved``: shapes that nobody has looked at yet, and that start at the switch point instead; ``ended``: others.

    Of these there may be a snapshot of the old primary, with transactions that the failover has lost. Or an earlier
    incarnation ends beyond the switch point, before which the next one must not begin.
    """

    moved: tuple[ShapeEntry, ...]
    ended: tuple[str, ...]


def lost_starts(entries: Iterable[ShapeEntry], switch: int) -> LostStarts:
    """Divide those of the live shapes among the entries that start at or past ``switch``."""
    beyond = [entry for entry in entries if entry.removed_at is None and entry.starts_after.tx_offset >= switch]
    moved = [entry for entry in beyond if entry.definition.incarnation == 1 and not entry.starts_visible]
    ids = {entry.definition.id for entry in moved}
    return LostStarts(
        tuple(replace(entry, starts_after=LogOffset.just_before(switch)) for entry in moved),
        tuple(entry.definition.id for entry in beyond if entry.definition.id not in ids),
    )
