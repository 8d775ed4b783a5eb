"""The JSON events of snapshots for writers: the rows that a shape had before its changes, attempt by attempt.

An **attempt** to read a shape's rows is published in the stream ``snapshots`` as events 0, 1, 2, … in one partition, in
order. The last one has the ``end``, and is published once all others are confirmed. An attempt without an end is
ignored: its program was killed. A later attempt has a greater number.
"""

from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.events import structs
from flushtracker.events.event_json import EventReader, dump_json
from flushtracker.events.structs import VERSION
from flushtracker.wal.changes import Row
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.value import value

_SNAPSHOTS: Final = EventReader("event of a snapshot", structs.Snapshot)


@value(frozen=True, slots=True)
class SnapshotRow:
    """A row with its key, as in an insert."""

    key: str
    value: Row


@value(frozen=True, slots=True)
class SnapshotEnd:
    """The attempt is complete with this number of ``rows``.

    ``contained`` says which of the shape's transactions the rows already reflect; a reader skips these.
    """

    rows: int
    contained: ContainedTransactions


@value(frozen=True, slots=True)
class SnapshotEvent:
    """Some rows of a shape: event ``number`` of an attempt, counted from 0. Only the last event has an ``end``.

    ``incarnation`` is the shape's when the attempt began.
    """

    source: str
    shape_id: str
    attempt: int
    number: int
    rows: tuple[SnapshotRow, ...] = ()
    end: SnapshotEnd | None = None
    incarnation: int = 1

    def to_json(self) -> str:
        event = structs.Snapshot(
            v=VERSION,
            source=self.source,
            shape_id=self.shape_id,
            incarnation=self.incarnation,
            attempt=self.attempt,
            number=self.number,
            rows=[structs.SnapshotRow(row.key, row.value) for row in self.rows],
            end=None if self.end is None else _end_json(self.end),
        )
        return dump_json(event)

    @classmethod
    def from_json(cls, text: str | bytes) -> "SnapshotEvent":
        """Parse one event; raises ``DecodeError``."""
        event = _SNAPSHOTS.read(text)
        return cls(
            source=event.source,
            shape_id=event.shape_id,
            attempt=event.attempt,
            number=event.number,
            rows=tuple(SnapshotRow(row.key, row.value) for row in event.rows),
            end=None if event.end is None else _end(event.end),
            incarnation=event.incarnation,
        )


def _end_json(end: SnapshotEnd) -> structs.SnapshotEnd:
    return structs.SnapshotEnd(end.rows, end.contained.lsn, end.contained.unseen)


def _end(end: structs.SnapshotEnd) -> SnapshotEnd:
    try:
        return SnapshotEnd(end.rows, ContainedTransactions(end.lsn, end.unseen))
    except ValueError as error:
        raise DecodeError(str(error)) from error
