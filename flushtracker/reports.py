"""What the groups of a source tell the driver, and what the driver makes of it: the ack.

A report stands for all that its sender knows now, so the newest one of each group is the whole truth about it: a group
that a micro-batch does not reach says nothing, and what it said before stays true.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flushtracker.flush_tracker import FlushTracker, Pending
from flushtracker.log_offset import LogOffset
from flushtracker.packed_state import offset_from_json, offset_to_json


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One shape group. ``pending`` is its range over all its shapes, ``None`` when they are caught up.

    ``pending.since_ms`` and ``blocking_shape`` are those of the shape with the least ``last_flushed``.
    """

    pending_shapes: int = 0
    pending: Pending | None = None
    blocking_shape: str | None = None

    def to_json(self) -> str:
        if self.pending is None:
            return "{}"
        sent, flushed = self.pending.last_sent, self.pending.last_flushed
        return json.dumps(
            {
                "pending_shapes": self.pending_shapes,
                "last_sent": offset_to_json(sent),
                "last_flushed": offset_to_json(flushed),
                "since_ms": self.pending.since_ms,
                "blocking_shape": self.blocking_shape,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "GroupReport":
        """Read what :meth:`to_json` wrote."""
        fields = json.loads(text)
        if not fields:
            return cls()
        pending = Pending(LogOffset(*fields["last_sent"]), LogOffset(*fields["last_flushed"]), fields["since_ms"])
        return cls(fields["pending_shapes"], pending, fields["blocking_shape"])


@dataclass(frozen=True, slots=True)
class ChainReport:
    """A source's chain of fragments: the last commit in it."""

    last_seen_offset: LogOffset | None

    def to_json(self) -> str:
        return json.dumps({"last_seen_offset": offset_to_json(self.last_seen_offset)})

    @classmethod
    def from_json(cls, text: str) -> "ChainReport":
        """Read what :meth:`to_json` wrote."""
        return cls(offset_from_json(json.loads(text)["last_seen_offset"]))


@dataclass(frozen=True, slots=True)
class Blocking:
    """The shape that holds a source's ack back, and since when it has made no progress."""

    shape_id: str
    pending: Pending


class SourceTracker:
    """The driver's view of one source: a ``FlushTracker`` over its groups, and what their reports say beside."""

    def __init__(self, ack_lsn: int = -1) -> None:
        self._tracker = FlushTracker(ack_lsn)
        self._reports: dict[str, GroupReport] = {}
        self.pending_shapes = 0

    @property
    def ack_lsn(self) -> int:
        """The last LSN acknowledged, -1 before the first."""
        return self._tracker.ack_lsn

    @property
    def last_seen_offset(self) -> LogOffset:
        """The last commit seen."""
        return self._tracker.last_seen_offset

    def apply(self, reports: Mapping[str, GroupReport], chain: ChainReport | None) -> int | None:
        """Take one micro-batch's reports by group; returns the LSN to acknowledge, ``None`` when it has not moved."""
        for shape_group, report in reports.items():
            previous = self._reports.pop(shape_group, None)
            self.pending_shapes += report.pending_shapes - (previous.pending_shapes if previous else 0)
            if report.pending is not None:
                self._reports[shape_group] = report
        entries = {shape_group: report.pending for shape_group, report in reports.items()}
        return self._tracker.apply(entries, chain.last_seen_offset if chain else None)

    def blocking(self) -> Blocking | None:
        """The shape with the least ``last_flushed`` of all, ``None`` when nothing is pending."""
        blocking = self._tracker.blocking_shape()
        return None if blocking is None else self._blocking(*blocking)

    def stalled(self, now_ms: int, grace_ms: int) -> Iterable[Blocking]:
        """Of each group the shape that holds it back, where it has made no progress for ``grace_ms``."""
        return [self._blocking(*item) for item in self._tracker.stalled_shapes(now_ms, grace_ms)]

    def _blocking(self, shape_group: str, pending: Pending) -> Blocking:
        return Blocking(self._reports[shape_group].blocking_shape or shape_group, pending)
