"""``SourceTrackers``: the driver's step, from the reports of one micro-batch to the acks that advanced.

Each shape group, and each source's chain of fragments, reports its whole state, so a new report replaces the group's
previous one. A group without events in a micro-batch reports nothing, and its last report remains valid.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from flushtracker.tracking.flush_tracker import FlushTracker, Pending
from flushtracker.tracking.packed_state import offset_from_json, offset_to_json
from flushtracker.wal.log_offset import LogOffset

CHAIN: Final = ""
"""The ``shape_group`` of a source's chain of fragments; a shape id is never empty."""


class Report(NamedTuple):
    """The report of one group of a source, as JSON: a :class:`ChainReport` for :data:`CHAIN`, else a
    :class:`GroupReport`.
    """

    source: str
    shape_group: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupReport:
    """The state of one shape group. ``pending`` is the range over all its shapes, ``None`` if all are caught up.

    ``blocking_shape`` is the shape with the least ``last_flushed``, and ``pending.since_ms`` belongs to it.
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
        """Read the output of :meth:`to_json`."""
        fields = json.loads(text)
        if not fields:
            return cls()
        pending = Pending(LogOffset(*fields["last_sent"]), LogOffset(*fields["last_flushed"]), fields["since_ms"])
        return cls(fields["pending_shapes"], pending, fields["blocking_shape"])


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The state of a source's chain of fragments: the last commit in it."""

    last_seen_offset: LogOffset | None

    def to_json(self) -> str:
        return json.dumps({"last_seen_offset": offset_to_json(self.last_seen_offset)})

    @classmethod
    def from_json(cls, text: str) -> "ChainReport":
        """Read the output of :meth:`to_json`."""
        return cls(offset_from_json(json.loads(text)["last_seen_offset"]))


@dataclass(frozen=True, slots=True)
class Blocking:
    """The shape that blocks a source's ack; ``pending.since_ms`` is when it last made progress."""

    shape_id: str
    pending: Pending


class SourceTracker:
    """The driver's view of one source: a ``FlushTracker`` over its groups, and each pending group's last report."""

    def __init__(self, ack_lsn: int = -1) -> None:
        self._tracker = FlushTracker(ack_lsn)
        self._reports: dict[str, GroupReport] = {}
        self.pending_shapes = 0

    @property
    def ack_lsn(self) -> int:
        """The last LSN acknowledged; -1 before the first."""
        return self._tracker.ack_lsn

    @property
    def last_seen_offset(self) -> LogOffset:
        """The last commit seen."""
        return self._tracker.last_seen_offset

    def apply(self, reports: Mapping[str, GroupReport], chain: ChainReport | None) -> int | None:
        """Apply one micro-batch's reports by group; return the LSN to acknowledge, ``None`` if it has not moved."""
        for shape_group, report in reports.items():
            previous = self._reports.pop(shape_group, None)
            self.pending_shapes += report.pending_shapes - (previous.pending_shapes if previous else 0)
            if report.pending is not None:
                self._reports[shape_group] = report
        entries = {shape_group: report.pending for shape_group, report in reports.items()}
        return self._tracker.apply(entries, chain.last_seen_offset if chain else None)

    def blocking(self) -> Blocking | None:
        """The shape with the least ``last_flushed``, ``None`` if nothing is pending."""
        blocking = self._tracker.blocking_shape()
        return None if blocking is None else self._blocking(*blocking)

    def stalled(self, now_ms: int, grace_ms: int) -> Iterable[Blocking]:
        """The blocking shape of each group that has made no progress for at least ``grace_ms``, longest first."""
        return [self._blocking(*item) for item in self._tracker.stalled_shapes(now_ms, grace_ms)]

    def _blocking(self, shape_group: str, pending: Pending) -> Blocking:
        return Blocking(self._reports[shape_group].blocking_shape or shape_group, pending)

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the tracker and the reports disagree; for tests."""
        self._tracker.check_invariants()
        pending = {group: report.pending for group, report in self._reports.items()}
        if pending != dict(self._tracker.pending):
            raise AssertionError(f"the tracker has {dict(self._tracker.pending)}, but the reports have {pending}")
        pending_shapes = sum(report.pending_shapes for report in self._reports.values())
        if pending_shapes != self.pending_shapes:
            raise AssertionError(f"pending_shapes is {self.pending_shapes}, but the reports add up to {pending_shapes}")


class SourceTrackers(Mapping[str, SourceTracker]):
    """A tracker for each source that has reported. On its first report, ``last_ack`` returns the source's durable ack.

    >>> trackers = SourceTrackers(last_ack=lambda source: None)
    >>> pending = GroupReport(1, Pending(LogOffset(100, 4), LogOffset(99, 0), since_ms=0), "users")
    >>> seen = ChainReport(LogOffset(100, 4))
    >>> trackers.apply([Report("7/1/s", "3", pending.to_json()), Report("7/1/s", CHAIN, seen.to_json())])
    {'7/1/s': 98}
    >>> trackers.apply([Report("7/1/s", "3", GroupReport().to_json())])
    {'7/1/s': 100}
    """

    def __init__(self, last_ack: Callable[[str], int | None]) -> None:
        self._last_ack = last_ack
        self._trackers: dict[str, SourceTracker] = {}

    def apply(self, reports: Iterable[Report]) -> dict[str, int]:
        """Apply the reports of one micro-batch, in any order; return the new ack of each source whose ack advanced."""
        groups: dict[str, dict[str, GroupReport]] = defaultdict(dict)
        chains: dict[str, ChainReport] = {}
        for source, shape_group, text in reports:
            if shape_group == CHAIN:
                chains[source] = ChainReport.from_json(text)
            else:
                groups[source][shape_group] = GroupReport.from_json(text)
        acks = {}
        for source in sorted({*groups, *chains}):
            ack_lsn = self._tracker(source).apply(groups[source], chains.get(source))
            if ack_lsn is not None:
                acks[source] = ack_lsn
        return acks

    def _tracker(self, source: str) -> SourceTracker:
        if source not in self._trackers:
            last_ack = self._last_ack(source)
            self._trackers[source] = SourceTracker(-1 if last_ack is None else last_ack)
        return self._trackers[source]

    def __getitem__(self, source: str) -> SourceTracker:
        return self._trackers[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trackers)

    def __len__(self) -> int:
        return len(self._trackers)
