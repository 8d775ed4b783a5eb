"""The largest event that the topics accept, and the shapes that a row is too large for.

An event of several changes that is over the limit is published in several parts (``outbox``). A single change
cannot be split: shapes whose event for it is over the limit can never get it and would be wrong without it, so they are
ended. The others continue. A shape whose definition is over the limit is refused. If a table's description grows over
the limit, its shapes are ended.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from flushtracker.errors import FlushtrackerError, ShapeError, first_of
from flushtracker.events.event_size import max_event_bytes
from flushtracker.events.fragment_sequencer import shape_changes
from flushtracker.events.registry_events import ShapeEntry, TableEntry
from flushtracker.events.structs import MAX_BIGINT
from flushtracker.events.topic_rules import FRAME_BYTES
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.shapes.table_binding import TableBinding, dotted
from flushtracker.shapes.type_binding import MOST_LEVELS, are_cut_off
from flushtracker.wal.changes import Change, LogItem, TransactionFragment, change_bytes, utf8_bytes
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.value import value

_ITEMS_FOR_CHANGES: Final = 8
"""Bytes of items in memory per byte of changes; a lower limit would make many small events."""

_LONGEST_LINK: Final = LogOffset(MAX_BIGINT, MAX_BIGINT)
"""A bound for the event's ``follows``, which is not known yet."""


@value(frozen=True, slots=True)
class EventLimit:
    """The limit of a record, ``max_record_bytes``; ``max_batch_bytes`` limits a fragment of several changes."""

    max_record_bytes: int
    max_batch_bytes: int

    @property
    def max_event_bytes(self) -> int:
        return self.max_record_bytes - FRAME_BYTES

    @property
    def max_items_bytes(self) -> int:
        """The limit of all shapes' items of a fragment together, unless it has a single change."""
        return _ITEMS_FOR_CHANGES * self.max_batch_bytes

    def require_entries(self, source: str, shapes: Iterable[tuple[ShapeDefinition, TableBinding]]) -> None:
        """Raise ``ShapeError`` if the registry's entries of new shapes, or of their tables, are over the limit.

        The error includes those of all these shapes.
        """
        errors: dict[str, FlushtrackerError] = {}
        tables: dict[int, str | None] = {}
        for definition, table in shapes:
            if table.oid not in tables:
                tables[table.oid] = self.size_reason(TableEntry(source, replace(table, partitions=())))
            own = self.size_reason(ShapeEntry(source, definition, table.oid, _LONGEST_LINK))
            if reason := own or tables[table.oid]:
                errors[definition.id] = ShapeError(f"shape {definition.id!r}: {reason}")
        if errors:
            raise first_of(errors)

    def size_reason(self, entry: ShapeEntry | TableEntry) -> str | None:
        """Why the registry cannot hold this entry; ``None`` if it can."""
        if isinstance(entry, TableEntry) and are_cut_off(entry.binding.types):
            return f"table {dotted(entry.binding.table)} has a type that is nested in more than {MOST_LEVELS} levels"
        size = len(entry.to_json().encode())
        if size <= self.max_event_bytes:
            return None
        what = "its definition"
        if isinstance(entry, TableEntry):
            what = f"the description of table {dotted(entry.binding.table)}"
        return (
            f"{what} is an event of {size} bytes, over the limit of {self.max_event_bytes} (max_event_bytes, "
            f"{self.max_record_bytes}, less the key)"
        )

    def check_of(self, source: str, fragment: TransactionFragment) -> Callable[[RoutedFragment], None]:
        """The check of the fragment's parts; reuse it if the fragment is routed again.

        It raises ``ShapeError`` if the event of a single change is over the limit.
        """
        changes: Sequence[Change] = fragment.changes
        if len(changes) > 1 and max_event_bytes(self.max_batch_bytes) <= self.max_event_bytes:
            changes = ()
        large = [change for change in changes if max_event_bytes(change_bytes(change)) > self.max_event_bytes]
        return _Check(self, source, fragment, large) if large else _accept


class _Check:
    """Measures each part that fits only once."""

    def __init__(self, limit: EventLimit, source: str, fragment: TransactionFragment, large: list[Change]) -> None:
        self._limit = limit
        self._source = source
        self._fragment = fragment
        self._large = {change.offset.op_offset: change for change in large}
        self._fit: set[str] = set()

    def __call__(self, part: RoutedFragment) -> None:
        if part.shape_id in self._fit:
            return
        items: dict[int, list[LogItem]] = {}
        for item in part.items:
            # The second item of a split update has the odd number after its change's.
            items.setdefault(item.offset.op_offset & ~1, []).append(item)
        for op, change in self._large.items():
            size = self._least_event_bytes(part, items.get(op, []))
            if size > self._limit.max_event_bytes:
                raise ShapeError(self._describe(part.shape_id, change, size))
        self._fit.add(part.shape_id)

    def _least_event_bytes(self, part: RoutedFragment, items: Sequence[LogItem]) -> int:
        """The size of the event with these items, or only of their values if these are over the limit.

        A row can have a gigabyte of values, and its event several, so it is not built just to be measured.
        """
        rows = (row for item in items for row in (item.value, item.old_value) if row is not None)
        values = sum(utf8_bytes(text) for row in rows for text in row.values() if text is not None)
        if values > self._limit.max_event_bytes or not items:
            return values
        alone = replace(part, items=tuple(items))
        return len(shape_changes(self._source, alone, _LONGEST_LINK, start=False).to_json().encode())

    def _describe(self, shape_id: str, change: Change, size: int) -> str:
        return (
            f"shape {shape_id!r}: the {type(change).__name__.lower()} of {'.'.join(change.relation.table)} at "
            f"{change.offset}, in transaction {self._fragment.xid} at {format_lsn(self._fragment.lsn)}, makes an event "
            f"of {size} bytes or more, over the limit of {self._limit.max_event_bytes} (max_event_bytes, "
            f"{self._limit.max_record_bytes}, less the key); it needs fewer columns, or a where that excludes such rows"
        )


def _accept(_part: RoutedFragment) -> None:
    """Used when no change can be over the limit."""
