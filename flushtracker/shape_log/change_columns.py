"""``ChangeColumns``: an event of ``shape_changes``, its items as columns of a log."""

from collections.abc import Sequence

from flushtracker.events.stream_events import ShapeChangesEvent, offset_of, read_shape_changes
from flushtracker.events.structs import Item
from flushtracker.shape_log.log_row import require_timestamp, row_json
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class ChangeColumns:
    """``reached`` is the cursor after the event. ``commit_timestamp`` is ``None`` unless the event ends its
    transaction. ``schema`` is the digest of the shape's columns and types (``shapes.shape_schema``), as capture has its
    table bound; ``None`` from a capture of an earlier release, or of a shape with subqueries.
    """

    shape_id: str
    xid: int
    follows: LogOffset
    last_log_offset: LogOffset
    reached: LogOffset
    start: bool
    commit_timestamp: str | None
    items: RowColumns
    incarnation: int = 1
    writer: str = LOG_WRITER
    schema: str | None = None

    @classmethod
    def of(cls, event: ShapeChangesEvent) -> "ChangeColumns":
        """Raises ``DecodeError`` if its commit has a timestamp that the log cannot hold."""
        return read_changes(event.to_json())


def read_changes(data: str | bytes) -> ChangeColumns:
    """Read an event; raises ``DecodeError``, also for a timestamp that the log cannot hold."""
    event = read_shape_changes(data)
    commit_timestamp = None if event.commit is None else event.commit.commit_timestamp
    if commit_timestamp is not None:
        require_timestamp(commit_timestamp)
    items, last = _columns(event.items), offset_of(event.last_log_offset)
    reached = last.reached(is_commit=event.commit is not None)
    return ChangeColumns(
        shape_id=event.shape_id,
        xid=event.xid,
        follows=offset_of(event.follows),
        last_log_offset=last,
        reached=max(reached, items.last_offset) if len(items) else reached,
        start=event.start,
        commit_timestamp=commit_timestamp,
        items=items,
        incarnation=event.incarnation,
        writer=event.writer,
        schema=event.schema,
    )


def _columns(items: Sequence[Item]) -> RowColumns:
    """The items as columns; rows become text as this project writes it, however the event wrote it."""
    return RowColumns(
        (
            [item.offset.tx_offset for item in items],
            [item.offset.op_offset for item in items],
            [item.operation for item in items],
            [item.key for item in items],
            [row_json(item.value) for item in items],
            [row_json(item.old_value) for item in items],
        )
    )
