"""``ChangeColumns``: an event of ``shape_changes`` as a writer takes it, its items as columns of a log."""

from flushtracker.events.canonical_events import canonical_changes
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.log_row import item_row, require_timestamp
from flushtracker.shape_log.row_columns import RowColumns
from flushtracker.shape_log.shape_chain import cursor_after
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class ChangeColumns:
    """``reached`` is the cursor once the event is taken. Only if it ends its transaction, it has a timestamp."""

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

    @classmethod
    def of(cls, event: ShapeChangesEvent) -> "ChangeColumns":
        """The same event. Raises ``DecodeError`` if its commit has a timestamp that the log cannot hold."""
        commit_timestamp = None if event.commit is None else event.commit.commit_timestamp
        if commit_timestamp is not None:
            require_timestamp(commit_timestamp)
        items = RowColumns.of_items(item_row(item, event.xid, 0) for item in event.items)
        return cls(
            *(event.shape_id, event.xid, event.follows, event.last_log_offset, cursor_after(event)),
            *(event.start, commit_timestamp, items, event.incarnation, event.writer),
        )


def read_changes(data: bytes) -> ChangeColumns:
    """Read an event; raises ``DecodeError``, also for a timestamp that the log cannot hold."""
    try:
        changes = canonical_changes(data.decode())
    except UnicodeDecodeError:
        changes = None
    if changes is None:
        return ChangeColumns.of(ShapeChangesEvent.from_json(data))
    if changes.commit_timestamp is not None:
        require_timestamp(changes.commit_timestamp)
    items, last = RowColumns(changes.items), LogOffset(changes.tx, changes.op)
    reached = last.reached(is_commit=changes.commit_timestamp is not None)
    return ChangeColumns(
        *(changes.shape_id, changes.xid, LogOffset(*changes.follows), last),
        *(max(reached, items.last_offset) if len(items) else reached, changes.start, changes.commit_timestamp, items),
        incarnation=changes.incarnation,
        writer=changes.writer,
    )
