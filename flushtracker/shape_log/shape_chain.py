"""Whether an event of ``shape_changes`` is the next of its shape, a resend, or comes after a gap.

A reader keeps a **cursor** per shape: how far it has processed the shape's changes (:func:`cursor_after`).

- An event that ends at or below the cursor is a *resend*: all of its items were processed before.
- An event whose ``follows`` is at or below the cursor is *next*. A resend may cut a transaction into other fragments,
  so the cursor may lie inside the event: only its items past the cursor are new (:func:`new_items`).
- A ``start`` is *next* too, whatever it follows. Capture resends everything unconfirmed, and nothing past what the
  shape's writer has notified is confirmed. A reader without a cursor can only begin with a start.
- Anything else comes after a *gap*. The reader skips the shape's events, and so notifies nothing past the gap, until a
  start closes it.

An update split in two has its second item one past ``last_log_offset``. The cursor moves to the greater of the two, so
that a resend that is cut differently does not repeat that item.
"""

from typing import Literal, TypeAlias

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.wal.changes import LogItem
from flushtracker.wal.log_offset import LogOffset

ChainPosition: TypeAlias = Literal["next", "resend", "gap"]


def chain_position(event: ShapeChangesEvent, cursor: LogOffset | None) -> ChainPosition:
    """The event's position, for a reader whose cursor of the event's shape is ``cursor``, ``None`` for a new shape.

    >>> event = ShapeChangesEvent("1/1/s", "a", 7, follows=LogOffset(50, 0), last_log_offset=LogOffset(90, 4),
    ...                           start=False, has_begin=True, commit=None)
    >>> [chain_position(event, cursor) for cursor in (LogOffset(50, 0), LogOffset(90, 4), LogOffset(40, 2))]
    ['next', 'resend', 'gap']
    """
    return position_of(cursor_after(event), event.follows, cursor, is_start=event.start)


def position_of(reached: LogOffset, follows: LogOffset, cursor: LogOffset | None, *, is_start: bool) -> ChainPosition:
    """:func:`chain_position` for an event after which the cursor is at ``reached``."""
    if cursor is not None and reached <= cursor:
        return "resend"
    is_linked = cursor is not None and follows <= cursor
    return "next" if is_start or is_linked else "gap"


def new_items(event: ShapeChangesEvent, cursor: LogOffset | None) -> tuple[LogItem, ...]:
    """The items past the cursor; the event must be next."""
    return event.items if cursor is None else tuple(item for item in event.items if item.offset > cursor)


def cursor_after(event: ShapeChangesEvent) -> LogOffset:
    """The cursor after the event: ``(tx_offset, ∞)`` after a commit, else the event's last offset.

    A writer notifies it once everything up to it is durable.
    """
    reached = event.last_log_offset.reached(is_commit=event.commit is not None)
    return max(reached, event.items[-1].offset) if event.items else reached
