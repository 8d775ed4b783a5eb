"""The JSON events of snapshots for writers: the rows that a shape had before its changes, attempt by attempt.

Of an **attempt** to read a shape's rows, the stream ``snapshots`` has the events 0, 1, 2, … in one partition, in order.
The last one has the ``end``, and is published once all others are confirmed. An attempt without it counts for nothing:
the program that made it was killed. A later attempt has a greater number.

Parsing is as strict as in :mod:`flushtracker.events.stream_events`.
"""

from collections.abc import Mapping
from typing import Any

from flushtracker.errors import DecodeError
from flushtracker.events.stream_events import row_field
from flushtracker.events.strict_json import (
    dump_event,
    get_field,
    incarnation_field,
    incarnation_json,
    integer_field,
    load_event,
    name_field,
    objects_field,
    text_field,
    typed_field,
)
from flushtracker.wal.changes import Row
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class SnapshotRow:
    """A row, with the key and the value that an insert of it has."""

    key: str
    value: Row


@value(frozen=True, slots=True)
class SnapshotEnd:
    """The attempt is complete, with so many ``rows``.

    ``contained`` says which of the shape's transactions the rows have the effects of: a reader leaves these out.
    """

    rows: int
    contained: ContainedTransactions


@value(frozen=True, slots=True)
class SnapshotEvent:
    """Some rows of a shape: event ``number`` of an attempt, counted from 0. Only the last event has an ``end``.

    ``incarnation``: of the shape, as it was when the attempt began.
    """

    source: str
    shape_id: str
    attempt: int
    number: int
    rows: tuple[SnapshotRow, ...] = ()
    end: SnapshotEnd | None = None
    incarnation: int = 1

    def to_json(self) -> str:
        return dump_event(
            self.source,
            shape_id=self.shape_id,
            **incarnation_json(self.incarnation),
            attempt=self.attempt,
            number=self.number,
            rows=[{"key": row.key, "value": row.value} for row in self.rows],
            end=None if self.end is None else _end_json(self.end),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "SnapshotEvent":
        """Parse one event; raises ``DecodeError``."""
        fields = load_event(text, "event of a snapshot")
        return cls(
            name_field(fields, "source"),
            name_field(fields, "shape_id"),
            integer_field(fields, "attempt", 1),
            integer_field(fields, "number", 0),
            tuple(_row(row) for row in objects_field(fields, "rows")),
            None if get_field(fields, "end") is None else _end(typed_field(fields, "end", dict)),
            incarnation_field(fields),
        )


def _row(fields: Mapping[str, Any]) -> SnapshotRow:
    row = row_field(fields, "value")
    if row is None:
        raise DecodeError("value of a row is null or missing")
    return SnapshotRow(text_field(fields, "key"), row)


def _end_json(end: SnapshotEnd) -> dict[str, object]:
    return {"rows": end.rows, "lsn": end.contained.lsn, "unseen": end.contained.unseen}


def _end(fields: Mapping[str, Any]) -> SnapshotEnd:
    ranges = get_field(fields, "unseen")
    if type(ranges) is not list or not all(type(each) is list and len(each) == 2 for each in ranges):
        raise DecodeError("unseen is not a list of pairs")
    unseen = tuple((_xid(first), _xid(last)) for first, last in ranges)
    try:
        contained = ContainedTransactions(integer_field(fields, "lsn", 0), unseen)
    except ValueError as error:
        raise DecodeError(str(error)) from error
    return SnapshotEnd(integer_field(fields, "rows", 0), contained)


def _xid(number: object) -> int:
    return integer_field({"unseen": number}, "unseen", 0)
