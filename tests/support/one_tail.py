"""Events of one shape, its tail, and what that shows clients."""

from dataclasses import replace
from typing import Any, Final

from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.serve.rendering import Rendering
from flushtracker.serve.seen_shape import SeenShape, ShapeFacts
from flushtracker.serve.tail.tails import Tails
from flushtracker.shape_log.change_columns import ChangeColumns
from flushtracker.shape_log.shape_snapshot import ShapeSnapshot
from flushtracker.shape_log.table.found_shape import FoundShape
from flushtracker.wal.changes import Commit, LogItem
from flushtracker.wal.log_offset import LogOffset
from tests.support.sample_registry import shape_entry
from tests.support.shape_log_rows import SOURCE

KEY: Final = (SOURCE, "users")
LIVE: Final = shape_entry()
SCHEMA: Final = "5c"
COMMIT: Final = Commit("2026-01-01T00:00:00.000000Z", 1)
MOST_BYTES: Final = 10 << 20


def event(tx: int, *ops: int, follows: tuple[int, int], is_whole: bool = True, **facts: Any) -> ChangeColumns:
    """An event with an item for each op, which ends its transaction if that is whole."""
    operation, value = facts.pop("operation", "insert"), facts.pop("value", {"id": "1", "note": "é\n"})
    key = None if operation == "truncate" else '"public"."users"/"1"'
    items = [LogItem(LogOffset(tx, op), operation, key, value if key else None) for op in ops]
    return sent(*items, follows=follows, is_whole=is_whole, **facts)


def sent(*items: LogItem, follows: tuple[int, int], is_whole: bool = True, **facts: Any) -> ChangeColumns:
    """An event with these items."""
    first, last = items[0].offset, items[-1].offset
    chosen: dict[str, Any] = {"xid": last.tx_offset, "start": False, "schema": SCHEMA, **facts}
    return ChangeColumns.of(
        ShapeChangesEvent(
            *KEY,
            follows=LogOffset(*follows),
            last_log_offset=last,
            has_begin=first.op_offset == 0,
            commit=COMMIT if is_whole else None,
            items=items,
            **chosen,
        )
    )


class Tail:
    """The tail of one shape, to which events are added, and what it shows clients."""

    def __init__(self, *events: ChangeColumns, memory_bytes: int = 64 << 20) -> None:
        self.tails = Tails(memory_bytes)
        self.tails.ask(KEY, 0)
        self.add(*events)

    def add(self, *events: ChangeColumns) -> None:
        for each in events:
            self.tails.add(KEY, each)
            self.tails.check_invariants()

    def shows(self, place: int, by: SeenShape, attempt: int | None = None) -> list[int] | None:
        """The transactions that a client is shown; ``None`` if it is left to the log."""
        handle = by.handle if attempt is None else replace(by.handle, attempt=attempt)
        page = self.tails.page(by, handle, place, MOST_BYTES)
        return None if page is None else [each.tx_offset for each in page.transactions]


def seen(
    tx: int | None,
    snapshot: ShapeSnapshot | None = None,
    cut: int | None = None,
    entry: ShapeEntry | None = LIVE,
    schema: str | None = SCHEMA,
) -> SeenShape:
    """The shape as a look found it, of which the log has all up to ``tx``."""
    incarnation = 1 if entry is None else entry.definition.incarnation
    facts = ShapeFacts(f"{incarnation:016x}", "0" * 8, "{}", Rendering(), "table", schema)
    return SeenShape(FoundShape(1, *KEY, tx, snapshot, entry, None), facts, cut)


FIRST: Final = event(104, 0, 2, follows=(95, 0), start=True)
SECOND: Final = event(200, 0, follows=(104, 2))
THIRD: Final = event(304, 0, follows=(200, 0))
