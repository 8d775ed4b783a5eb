"""The largest event that a topic accepts, and the shapes that a row is too large for.

A fragment of several changes always fits: :data:`MAX_BATCH_BYTES` is the greatest ``max_batch_bytes`` with which its
events cannot exceed the limit, however JSON escapes them. A single row may be larger. It can never be published to the
shapes whose event is over the limit, and without it they would be wrong, so they are ended. The others continue.
"""

from typing import Final

from flushtracker.errors import ShapeError
from flushtracker.events.event_size import fragment_bytes_within, max_event_bytes
from flushtracker.events.fragment_sequencer import shape_changes
from flushtracker.events.strict_json import MAX_BIGINT
from flushtracker.kafka.topic_rules import MAX_MESSAGE_BYTES
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import TransactionFragment, change_bytes, utf8_bytes
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn

_KEY_BYTES: Final = 4_096
"""For the record's key and Kafka's framing, which count as well."""

_LONGEST_LINK: Final = LogOffset(MAX_BIGINT, MAX_BIGINT)
"""What the event follows is not known yet."""

MAX_EVENT_BYTES: Final = MAX_MESSAGE_BYTES - _KEY_BYTES
MAX_BATCH_BYTES: Final = fragment_bytes_within(MAX_EVENT_BYTES)


class EventLimit:
    """The check of one fragment's parts. A part that fits is measured once, however often the fragment is routed."""

    def __init__(self, source: str, fragment: TransactionFragment) -> None:
        self._source = source
        self._fragment = fragment
        changes = fragment.changes
        self._always_fits = len(changes) != 1 or max_event_bytes(change_bytes(changes[0])) <= MAX_EVENT_BYTES
        self._fit: set[str] = set()

    def check(self, part: RoutedFragment) -> None:
        """Raise ``ShapeError`` if the part's event is over the limit."""
        if self._always_fits or part.shape_id in self._fit:
            return
        size = _least_event_bytes(self._source, part)
        if size > MAX_EVENT_BYTES:
            raise ShapeError(self._describe(part.shape_id, size))
        self._fit.add(part.shape_id)

    def _describe(self, shape_id: str, size: int) -> str:
        (change,) = self._fragment.changes
        return (
            f"shape {shape_id!r}: the {type(change).__name__.lower()} of {'.'.join(change.relation.table)} at "
            f"{change.offset}, in transaction {self._fragment.xid} at {format_lsn(self._fragment.lsn)}, makes an event "
            f"of {size} bytes or more, over the limit of {MAX_EVENT_BYTES} (the topics' {MAX_MESSAGE_BYTES}, less the "
            "key); it needs fewer columns, or a where that excludes such rows"
        )


def _least_event_bytes(source: str, part: RoutedFragment) -> int:
    """The size of the part's event, or just of its values if those alone are over the limit.

    The values of a row can have a gigabyte, and the event several: it is not built only to be measured.
    """
    rows = (row for item in part.items for row in (item.value, item.old_value) if row is not None)
    values = sum(utf8_bytes(value) for row in rows for value in row.values() if value is not None)
    if values > MAX_EVENT_BYTES:
        return values
    return len(shape_changes(source, part, _LONGEST_LINK, start=False).to_json().encode())
