"""``RowsJudge``: checks the rows that a writer shows for shapes with a snapshot.

Allowed are the rows of a complete attempt, with the items of all transactions that it does not contain applied in
commit order, up to any transaction that was sent. After a shape has begun again, the rows of the previous incarnation
are allowed until something of the new one is notified.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flushtracker.errors import ConfigError
from flushtracker.events.snapshot_events import SnapshotEvent
from flushtracker.events.stream_events import ShapeChangesEvent
from flushtracker.trials.conformance.simulated_source import Incarnation
from flushtracker.trials.conformance.simulated_table import Rows, rows_after
from flushtracker.wal.changes import LogItem
from flushtracker.wal.contained_transactions import ContainedTransactions
from flushtracker.wal.log_offset import LogOffset

Shape = tuple[str, str]
"""Source and shape id."""


@dataclass(slots=True)
class _Transaction:
    xid: int
    incarnation: int
    is_committed: bool = False
    items: dict[LogOffset, LogItem] = field(default_factory=dict)


@dataclass(slots=True)
class _Attempt:
    incarnation: int
    rows: Rows = field(default_factory=dict)
    contained: ContainedTransactions | None = None


class RowsJudge:
    """Its methods must be called for everything that is sent, in order."""

    def __init__(self) -> None:
        self._transactions: dict[Shape, dict[int, _Transaction]] = {}
        self._attempts: dict[Shape, dict[int, _Attempt]] = {}
        self._begun: dict[Shape, Incarnation] = {}

    def begun(self, shape: Shape, incarnation: Incarnation) -> None:
        """Note that the shape begins again, so a writer may delete everything it has of it."""
        self._begun[shape] = incarnation

    def sent(self, event: ShapeChangesEvent) -> None:
        of_shape = self._transactions.setdefault((event.source, event.shape_id), {})
        found = of_shape.setdefault(event.last_log_offset.tx_offset, _Transaction(event.xid, event.incarnation))
        found.items.update({item.offset: item for item in event.items})
        found.is_committed |= event.commit is not None

    def snapshot_sent(self, event: SnapshotEvent) -> None:
        of_shape = self._attempts.setdefault((event.source, event.shape_id), {})
        found = of_shape.setdefault(event.attempt, _Attempt(event.incarnation))
        found.rows |= {row.key: row.value for row in event.rows}
        if event.end is not None:
            found.contained = event.end.contained

    def may_leave_out(self, shape: Shape, lsn: int) -> bool:
        """Whether the transaction is in a complete snapshot of the shape, or in an incarnation that has ended."""
        if lsn <= self.starts_after(shape):
            return True
        transaction = self._transactions.get(shape, {}).get(lsn)
        contained = [attempt.contained for attempt in self._attempts.get(shape, {}).values()]
        return transaction is not None and any(each and each.contains(lsn, transaction.xid) for each in contained)

    def missing(self, lines: Iterable[str]) -> list[str]:
        """Return the shapes with a complete snapshot that the lines do not show; raises ``ConfigError``."""
        complete = {
            shape
            for shape, attempts in self._attempts.items()
            if any(
                attempt.contained is not None and attempt.incarnation == self._begun.get(shape, Incarnation()).number
                for attempt in attempts.values()
            )
        }
        hidden = sorted(complete - shown(lines).keys())
        return [f"shape {shape_id!r} of {source} has its snapshot, and shows no rows" for source, shape_id in hidden]

    def faults(self, lines: Iterable[str], notified: Mapping[Shape, LogOffset], *, newest: bool = False) -> list[str]:
        """Return how the rows shown differ from everything allowed; raises ``ConfigError``.

        They must contain the changes up to the notified offset, and may contain more of what was sent. They may be
        based on any complete attempt, or with ``newest`` only on the newest.
        """
        found = []
        for shape, rows in sorted(shown(lines).items()):
            if shape in self._attempts and (fault := self._fault(shape, rows, notified.get(shape), newest)) is not None:
                found.append(f"shape {shape[1]!r} of {shape[0]} {fault}")
        return found

    def _fault(self, shape: Shape, rows: Rows, notified: LogOffset | None, newest: bool) -> str | None:  # noqa: FBT001
        attempts = sorted(self._attempts[shape].items(), reverse=True)
        complete = [attempt for _, attempt in attempts if attempt.contained is not None]
        allowed = complete[:1] if newest else complete
        if any(rows == state for attempt in allowed for state in self._states(shape, attempt, notified)):
            return None
        last = deque((state for attempt in allowed[:1] for state in self._states(shape, attempt, notified)), maxlen=1)
        if not last:
            return f"shows {len(rows)} rows, before a snapshot of it is complete"
        return f"shows rows that it has had at no time{_difference(rows, last[0])}"

    def starts_after(self, shape: Shape) -> int:
        """The shape's current incarnation has only transactions after this LSN."""
        return self._begun.get(shape, Incarnation()).starts_after

    def _states(self, shape: Shape, attempt: _Attempt, notified: LogOffset | None) -> Iterator[Rows]:
        """Yield the rows after each transaction of the attempt's incarnation, beginning with the last notified one."""
        of_shape = self._transactions.get(shape, {})
        lsns = sorted(lsn for lsn, transaction in of_shape.items() if transaction.is_committed)
        reached = sum(notified is not None and LogOffset.last_of(lsn) <= notified for lsn in lsns)
        rows = attempt.rows
        if not reached:
            yield rows
        for number, lsn in enumerate(lsns, start=1):
            transaction = of_shape[lsn]
            if transaction.incarnation > attempt.incarnation:
                return
            if attempt.contained is not None and not attempt.contained.contains(lsn, transaction.xid):
                rows = rows_after(rows, [transaction.items[offset] for offset in sorted(transaction.items)])
            if number >= reached:
                yield rows


def shown(lines: Iterable[str]) -> dict[Shape, Rows]:
    """Parse the output of the rows command into the rows of each shape.

    Raises:
        ConfigError: a line does not have the required form.
    """
    return dict(_parse(number, line) for number, line in enumerate(lines, start=1))


def _parse(number: int, line: str) -> tuple[Shape, Rows]:
    try:
        fields: dict[str, Any] = json.loads(line)
        return (fields["source"], fields["shape_id"]), dict(fields["rows"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"line {number} of the rows is {line!r:.80}, but must be an object with source, shape_id and rows, whose "
            "names are keys"
        ) from error


def _difference(found: Rows, expected: Rows) -> str:
    """Describe one key whose row differs from the newest state."""
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            return f"; {key} is {found.get(key)!r:.120}, and last was {expected.get(key)!r:.120}"
    return ""
