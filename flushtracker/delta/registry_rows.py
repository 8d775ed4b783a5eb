"""The rows of a registry table: finds the current row of each entry, and condenses removed shapes.

Among the rows with the same (source, type, id), only those with the shape's last incarnation count, and of these only
the ones with its end, if there are any. The one with the greatest ``written_at`` is current. So the result depends
neither on the order of the rows nor on replaced rows that are still there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from flushtracker.events.registry import EntryKey, goes_back
from flushtracker.events.registry_events import RegistryEntry, ShapeEntry

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("type", pa.string()),
        ("id", pa.string()),
        ("entry", pa.string()),
        ("written_at", pa.timestamp("us", tz="UTC")),
    ]
)
EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A registry entry, and when it was written to this table."""

    entry: RegistryEntry
    text: str
    written_at: datetime

    @property
    def written_us(self) -> int:
        return (self.written_at - EPOCH) // MICROSECOND


def with_rows(
    current: Mapping[EntryKey, WrittenEntry],
    rows: pa.Table,
    known: Mapping[EntryKey, WrittenEntry],
    parse: Callable[[Mapping[str, Any]], RegistryEntry],
) -> dict[EntryKey, WrittenEntry]:
    """Return ``current``, updated by ``rows``. A row whose text is in ``known`` is not parsed again."""
    found = dict(current)
    for row in rows.to_pylist():
        key = row["source"], row["type"], row["id"]
        same = known.get(key)
        entry = same.entry if same is not None and same.text == row["entry"] else parse(row)
        written = WrittenEntry(entry, row["entry"], row["written_at"])
        if key not in found or _counts_more(written, found[key]):
            found[key] = written
    return found


def _counts_more(one: WrittenEntry, other: WrittenEntry) -> bool:
    if goes_back(one.entry, other.entry):
        return False
    return goes_back(other.entry, one.entry) or one.written_at >= other.written_at


def as_rows(entries: Mapping[EntryKey, WrittenEntry]) -> pa.Table:
    rows = [(*key, each.text, each.written_at) for key, each in entries.items()]
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def without_definitions(current: Mapping[EntryKey, WrittenEntry], deleted_us: int) -> dict[EntryKey, WrittenEntry]:
    """Return the condensed entries of shapes whose removal was written up to ``deleted_us``, unless condensed
    already.
    """
    found = dict[EntryKey, WrittenEntry]()
    for key, each in current.items():
        entry = each.entry
        is_removed = isinstance(entry, ShapeEntry) and entry.removed_at is not None and each.written_us <= deleted_us
        if isinstance(entry, ShapeEntry) and is_removed and not entry.is_condensed:
            condensed = entry.condensed()
            found[key] = WrittenEntry(condensed, condensed.to_json(), each.written_at)
    return found


def not_condensed(entry: ShapeEntry, known: WrittenEntry, now: datetime) -> WrittenEntry:
    """The known entry of a removed shape, in place of its condensed one: readers may need the definition.

    If the removal itself was missed, it is taken from the condensed entry, with the incarnation that has ended.
    """
    if not isinstance(known.entry, ShapeEntry):
        return known
    incarnation = entry.definition.incarnation
    if known.entry.removed_at is not None and known.entry.definition.incarnation >= incarnation:
        return known
    removed = replace(
        known.entry,
        definition=replace(known.entry.definition, incarnation=incarnation),
        removed_at=entry.removed_at,
        ended_because=entry.ended_because,
        evicted_at_ms=entry.evicted_at_ms,
    )
    return WrittenEntry(removed, removed.to_json(), now)
