"""``SnapshotReader``: assembles the snapshots of shapes for a writer with its own storage.

For each shape the writer keeps a :class:`SnapshotCursor`, in the same storage transaction as the rows: how far it has
processed the latest attempt.

- Event 0 of a later attempt is *first*: the rows of the previous attempt are deleted, unless it is complete.
- The event that the cursor expects is *next*, and its rows are stored.
- Any other is *ignored*: a duplicate, or one of an earlier attempt, from a program that had hung. So is one whose
  predecessors retention has deleted: its attempt can no longer complete.

An attempt is complete once its last event is processed. Only then do its rows, with all changes that it does not
contain, in order, give the shape's rows. The rows of the previous complete attempt are then deleted.

Changes are stored and notified whether or not there is a snapshot yet; its last event says which of them it contains.

The first entry, change or snapshot event that names a later **incarnation** of a shape begins it
(:meth:`SnapshotReader.begin`). From then on attempts of earlier ones are ignored, even if published completely. A
snapshot of the incarnation contains all transactions of earlier ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import ShapeChangesEvent

SnapshotPosition: TypeAlias = Literal["first", "next", "ignored"]
_Shape = tuple[str, str]
"""A source and a shape's id."""


@dataclass(frozen=True, slots=True, order=True)
class SnapshotCursor:
    """The number of ``events`` processed of an attempt of this incarnation; attempt 0 means none has begun."""

    attempt: int
    events: int
    incarnation: int = 1


class SnapshotReader:
    """``cursors`` and ``complete`` are what the writer has stored; ``complete`` has the last events of attempts.

    ::

        reader = SnapshotReader(cursors, complete)
        ...
        if reader.begin(...):                      # an entry, a change or an event, before it is taken
            delete_rows(...)                       # of all attempts
            store_cursor(reader.cursor(...))
        ...
        position = reader.take(event)              # an event of the stream snapshots, in its order
        if position == "ignored":
            continue
        if position == "first" or event.end is not None:
            delete_rows(...)                       # of all attempts but reader.attempts(...)
        store(event.rows, reader.cursor(...), reader.complete(...))

    Store everything for an event in one storage transaction. If it fails, create a new reader from what is stored.
    """

    def __init__(
        self, cursors: Mapping[_Shape, SnapshotCursor] | None = None, complete: Iterable[SnapshotEvent] = ()
    ) -> None:
        self._cursors = dict(cursors or {})
        self._complete = {(event.source, event.shape_id): event for event in complete}

    def begin(self, source: str, shape_id: str, incarnation: int) -> bool:
        """Begin the incarnation; return whether it was new.

        The rows of all attempts must be deleted, in one storage transaction with the new :meth:`cursor`.
        """
        if incarnation <= self.incarnation(source, shape_id):
            return False
        self._cursors[source, shape_id] = SnapshotCursor(0, 0, incarnation)
        self._complete.pop((source, shape_id), None)
        return True

    def incarnation(self, source: str, shape_id: str) -> int:
        """The last incarnation that has begun. Entries, changes and events of earlier ones are ignored."""
        return self._cursors.get((source, shape_id), SnapshotCursor(0, 0)).incarnation

    def take(self, event: SnapshotEvent) -> SnapshotPosition:
        """Process an event of ``snapshots``; its rows must be stored, unless it is ignored."""
        shape = event.source, event.shape_id
        self.begin(*shape, event.incarnation)
        cursor = self._cursors.get(shape, SnapshotCursor(0, 0))
        is_first = event.number == 0 and event.attempt > cursor.attempt and event.incarnation == cursor.incarnation
        if not is_first and cursor != SnapshotCursor(event.attempt, event.number, event.incarnation):
            return "ignored"
        self._cursors[shape] = SnapshotCursor(event.attempt, event.number + 1, event.incarnation)
        if event.end is not None:
            self._complete[shape] = replace(event, rows=())
        return "first" if is_first else "next"

    def forget(self, source: str, shape_id: str) -> None:
        """Drop what is known of a shape that has ended."""
        self._cursors.pop((source, shape_id), None)
        self._complete.pop((source, shape_id), None)

    def cursor(self, source: str, shape_id: str) -> SnapshotCursor | None:
        """How far the latest attempt has been processed."""
        return self._cursors.get((source, shape_id))

    def complete(self, source: str, shape_id: str) -> SnapshotEvent | None:
        """The last event of the shape's complete attempt, without rows. ``None``: the shape cannot be read yet."""
        return self._complete.get((source, shape_id))

    def attempts(self, source: str, shape_id: str) -> frozenset[int]:
        """The attempts whose rows must be kept: the complete one, and a later one in progress."""
        kept = self._cursors.get((source, shape_id)), self._complete.get((source, shape_id))
        return frozenset(each.attempt for each in kept if each is not None and each.attempt)

    def contains(self, event: ShapeChangesEvent) -> bool:
        """Whether the complete snapshot has the effects of the event's transaction, which must then be skipped.

        An event of an earlier incarnation is always contained; its xid is not compared, because it may have been
        reused.
        """
        found = self._complete.get((event.source, event.shape_id))
        if found is None or found.end is None:
            return False
        if event.incarnation != found.incarnation:
            return event.incarnation < found.incarnation
        return found.end.contained.contains(event.last_log_offset.tx_offset, event.xid)
