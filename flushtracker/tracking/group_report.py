"""``GroupReport``: the report of a shape group to the driver after each micro-batch that reaches it."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from flushtracker.errors import StateError
from flushtracker.tracking.flush_tracker import Pending
from flushtracker.tracking.packed_state import START_OVER, offset_from_json, offset_to_json
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.names import LOG_WRITER

HOLDERS: Final = 10
"""How many pending shapes a report lists: those that have flushed the least, and so hold the most WAL."""


class PendingShape(NamedTuple):
    """A pending shape. They sort by the WAL that they hold, the most first, then by id.

    ``since_ms`` is when it became pending or last made progress. ``transactions`` counts those not flushed, including
    an open one; merged ones count as one. ``writer`` is the writer that must flush them.
    """

    last_flushed: LogOffset
    shape_id: str
    since_ms: int
    transactions: int
    writer: str = LOG_WRITER


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The state of one shape group: its pending shapes, and their greatest ``last_sent``.

    ``holders`` are its first :data:`HOLDERS` pending shapes, in order. ``removed`` are the shapes that the last report
    listed and this micro-batch removed.
    """

    pending_shapes: int = 0
    last_sent: LogOffset | None = None
    holders: tuple[PendingShape, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def pending(self) -> Pending | None:
        """The range over all shapes, ``None`` if all are caught up; ``since_ms`` is that of the first holder."""
        if not self.holders or self.last_sent is None:
            return None
        return Pending(self.last_sent, self.holders[0].last_flushed, self.holders[0].since_ms)

    def after(self, ack_lsn: int) -> "GroupReport":
        """The report once everything up to ``ack_lsn`` is done.

        Shapes that are caught up still count as pending until the group's next events: a report does not list all
        transactions.
        """
        is_done = self.last_sent is not None and self.last_sent.tx_offset <= ack_lsn
        return GroupReport(removed=self.removed) if is_done else self

    def listed(self, shape_ids: Collection[str]) -> tuple[str, ...]:
        return tuple(shape.shape_id for shape in self.holders if shape.shape_id in shape_ids)

    def to_json(self) -> str:
        """The report without empty keys; most reports are ``{}``."""
        fields: dict[str, Any] = {}
        if self.pending_shapes:
            fields = {
                "pending_shapes": self.pending_shapes,
                "last_sent": offset_to_json(self.last_sent),
                "holders": self.holders,
            }
        if self.removed:
            fields["removed"] = self.removed
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "GroupReport":
        """Read the output of :meth:`to_json`.

        Raises:
            StateError: it has pending shapes and lists none, so it would pass for caught up.
        """
        fields = json.loads(text)
        report = cls(
            fields.get("pending_shapes", 0),
            offset_from_json(fields.get("last_sent")),
            tuple(PendingShape(LogOffset(*offset), *rest) for offset, *rest in fields.get("holders", ())),
            tuple(fields.get("removed", ())),
        )
        if report.pending_shapes and not report.holders:
            raise StateError(
                f"a group's report has {report.pending_shapes} pending shapes and lists none, so another release wrote "
                f"it; {START_OVER}"
            )
        return report
