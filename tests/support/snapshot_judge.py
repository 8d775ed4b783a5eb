"""Whether a snapshot of a shape and the shape's log fit together, judged by every state in between.

That the end is right is no proof: to apply again what a snapshot already holds converges, too. So from the snapshot's
last visible commit on, the rows after *each* transaction must be those of the table, and every change must be able to
follow: no insert of a key that is there, and no update or delete of one that is not.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.shape_log.shape_chain import chain_position, cursor_after, new_items
from flushtracker.wal.changes import LogItem, Row
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset

Rows = dict[str, Row]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A shape's part of a transaction."""

    lsn: int
    xid: int
    items: tuple[LogItem, ...]


@dataclass(slots=True)
class Verdict:
    """What was looked at: transactions that the snapshot contains, that were applied, and states compared."""

    contained: int = 0
    applied: int = 0
    compared: int = 0
    faults: list[str] = field(default_factory=list)


def transactions(events: Iterable[ShapeChangesEvent], shape_id: str) -> list[Transaction]:
    """The shape's transactions, each once, as a writer takes them."""
    cursor: LogOffset | None = None
    items: dict[tuple[int, int], list[LogItem]] = {}
    for event in events:
        if event.shape_id != shape_id:
            continue
        position = chain_position(event, cursor)
        assert position != "gap", f"{shape_id}: {event.follows} -> {event.last_log_offset} at {cursor}"
        if position == "next":
            assert event.xid is not None
            items.setdefault((event.last_log_offset.tx_offset, event.xid), []).extend(new_items(event, cursor))
            cursor = cursor_after(event)
    return [Transaction(lsn, xid, tuple(found)) for (lsn, xid), found in sorted(items.items())]


def judge(
    contained: ContainedTransactions,
    region: Sequence[tuple[str, str]],
    log: Sequence[Transaction],
    table: Sequence[Transaction],
    is_in: Callable[[Row], bool],
) -> Verdict:
    """Judge a snapshot with these rows, keys and values, by its shape's ``log`` and by that of its whole ``table``.

    ``contained`` is what it says of itself. The table's log begins with an empty table; ``is_in`` is the shape's
    condition.
    """
    verdict = Verdict()
    rows: Rows = {key: json.loads(value) for key, value in region}
    if len(rows) != len(region):
        verdict.faults.append("the snapshot has a key twice")
    last_visible = max((tx.lsn for tx in table if contained.contains(tx.lsn, tx.xid)), default=0)
    whole: Rows = {}
    by_lsn = {tx.lsn: tx for tx in log}
    for of_table in table:
        assert not _apply(whole, of_table.items), "the table's own log cannot be folded"
        transaction = by_lsn.get(of_table.lsn)
        if transaction is not None and contained.contains(transaction.lsn, transaction.xid):
            verdict.contained += 1
        elif transaction is not None:
            verdict.applied += 1
            verdict.faults += [f"at {transaction.lsn}: {fault}" for fault in _apply(rows, transaction.items)]
        if of_table.lsn >= last_visible:
            verdict.compared += 1
            if rows != {key: row for key, row in whole.items() if is_in(row)}:
                verdict.faults.append(f"after the transaction at {of_table.lsn}, the rows are not those of the table")
    return verdict


def _apply(rows: Rows, items: Iterable[LogItem]) -> list[str]:
    """Apply the items; returns those that could not follow."""
    faults = []
    for item in items:
        key = item.key or ""
        if item.operation == "truncate":
            rows.clear()
        elif item.operation == "truncate_partition":
            for other in [other for other in rows if other.startswith(key + "/")]:
                del rows[other]
        elif (item.operation == "insert") == (key in rows):
            faults.append(f"{item.operation} of {key} cannot follow")
        elif item.operation == "delete":
            del rows[key]
        else:
            rows[key] = {**rows.get(key, {}), **(item.value or {})}
    return faults
