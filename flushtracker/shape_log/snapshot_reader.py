"""``SnapshotReader``: puts the snapshots of shapes together, for a writer that stores rows wherever it likes.

For each shape the writer keeps a :class:`SnapshotCursor`, in the same storage transaction as the rows: how far it has
taken the last attempt that has begun.

- Event 0 of a later attempt is *first*: the rows of the attempt before are deleted, unless that is complete.
- The event that the cursor expects is *next*, and its rows are stored.
- Any other is *ignored*: a duplicate; one of an earlier attempt, whose program was frozen; or one after events that
  were deleted by age, of an attempt that can no longer be complete.

An attempt is complete once its last event is taken. Not before then are its rows those of the shape, with all changes
that it does not contain, in their order. The rows of the complete attempt before are deleted then.

Changes are stored, and notified, whether or not there is a snapshot yet: which of them it contains is known at its end.

Whatever names a later **incarnation** of a shape first begins it (:meth:`SnapshotReader.begin`): an entry, a change or
an event of a snapshot. From then on attempts of earlier ones are ignored, also one that is published until its end. A
snapshot of the incarnation contains all transactions of those before.
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
    """So many ``events`` of an attempt are taken, of this incarnation of the shape; of no attempt yet if it is 0."""

    attempt: int
    events: int
    incarnation: int = 1


class SnapshotReader:
    """``cursors`` and ``complete`` are as the writer has stored them; ``complete`` are the last events of attempts.

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

    All that is stored for an event belongs into one storage transaction. If that fails, create another reader with what
    is stored.
    """

    def __init__(
        self, cursors: Mapping[_Shape, SnapshotCursor] | None = None, complete: Iterable[SnapshotEvent] = ()
    ) -> None:
        self._cursors = dict(cursors or {})
        self._complete = {(event.source, event.shape_id): event for event in complete}

    def begin(self, source: str, shape_id: str, incarnation: int) -> bool:
        """Begin the incarnation; false if it, or a later one, has begun.

        The rows of all attempts must be deleted, in one storage transaction with the new :meth:`cursor`.
        """
        if incarnation <= self.incarnation(source, shape_id):
            return False
        self._cursors[source, shape_id] = SnapshotCursor(0, 0, incarnation)
        self._complete.pop((source, shape_id), None)
        return True

    def incarnation(self, source: str, shape_id: str) -> int:
        """The last incarnation that has begun. Entries, changes and events of earlier ones count for nothing."""
        return self._cursors.get((source, shape_id), SnapshotCursor(0, 0)).incarnation

    def take(self, event: SnapshotEvent) -> SnapshotPosition:
        """Take an event of ``snapshots``; its rows must be stored, unless it is ignored."""
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

    def cursor(self, source: str, shape_id: str) -> SnapshotCursor | None:
        """How far the last attempt that has begun is taken."""
        return self._cursors.get((source, shape_id))

    def complete(self, source: str, shape_id: str) -> SnapshotEvent | None:
        """The last event of the shape's complete attempt, without rows. ``None``: the shape cannot be read yet."""
        return self._complete.get((source, shape_id))

    def attempts(self, source: str, shape_id: str) -> frozenset[int]:
        """The attempts whose rows must be kept: the complete one, and the one that has begun since."""
        kept = self._cursors.get((source, shape_id)), self._complete.get((source, shape_id))
        return frozenset(each.attempt for each in kept if each is not None and each.attempt)

    def contains(self, event: ShapeChangesEvent) -> bool:
        """Whether the complete snapshot has the effects of the event's transaction, which is to be left out then.

        An event of an earlier incarnation is contained, whatever its xid: that may be as old as to be used again.
        """
        found = self._complete.get((event.source, event.shape_id))
        if found is None or found.end is None:
            return False
        if event.incarnation != found.incarnation:
            return event.incarnation < found.incarnation
        return found.end.contained.contains(event.last_log_offset.tx_offset, event.xid)
