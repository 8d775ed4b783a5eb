"""``SourceTrackers``: the driver's step, from the reports of one micro-batch to the acks that advanced.

Each shape group, and each source's chain of fragments, reports its whole state, so a new report replaces the group's
previous one. A group without events in a micro-batch reports nothing, and its last report remains valid.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final, NamedTuple

from flushtracker.tracking.flush_tracker import FlushTracker
from flushtracker.tracking.group_report import HOLDERS, GroupReport, PendingShape
from flushtracker.tracking.packed_state import offset_from_json, offset_to_json
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.source_name import successors

CHAIN: Final = ""
"""The ``shape_group`` of a source's chain of fragments; a shape id is never empty."""


class ReportRow(NamedTuple):
    """A row for the driver. ``report`` is JSON: a :class:`ChainReport` for :data:`CHAIN`, else a
    :class:`GroupReport`.
    """

    source: str
    shape_group: str
    report: str


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The state of a source's chain of fragments: the last commit in it, and its gap, if it has one."""

    last_seen_offset: LogOffset | None
    gap: str | None = None

    def to_json(self) -> str:
        gap = {} if self.gap is None else {"gap": self.gap}
        return json.dumps({"last_seen_offset": offset_to_json(self.last_seen_offset), **gap})

    @classmethod
    def from_json(cls, text: str) -> "ChainReport":
        fields = json.loads(text)
        return cls(offset_from_json(fields["last_seen_offset"]), fields.get("gap"))


class SourceTracker:
    """The driver's view of one source: a ``FlushTracker`` over its groups, and each pending group's last report.

    ``holders`` are the first :data:`HOLDERS` pending shapes, in order. ``removed`` are the shapes that a group had
    listed and the last micro-batch removed. A source with a ``gap`` is set aside: it gets no further ack, and its
    pending shapes are unknown.
    """

    def __init__(self, ack_lsn: int = -1) -> None:
        self._tracker = FlushTracker(ack_lsn)
        self._reports: dict[str, GroupReport] = {}
        self.pending_shapes = 0
        self.holders: tuple[PendingShape, ...] = ()
        self.removed: frozenset[str] = frozenset()
        self.last_seen_offset = LogOffset.before_all()
        """The last commit seen, before the gap if there is one."""
        self.gap: str | None = None
        self.has_fragments = False
        """Whether its chain has reported; otherwise there were only notifications under its name."""

    @property
    def ack_lsn(self) -> int:
        """The last LSN acknowledged; -1 before the first."""
        return self._tracker.ack_lsn

    def apply(self, reports: Mapping[str, GroupReport], chain: ChainReport | None) -> int | None:
        """Apply one micro-batch's reports by group; return the LSN to acknowledge, ``None`` if it has not moved.

        A group's report may be older than the ack; what is acknowledged stays done. The groups do not see gaps in the
        chain, so their reports are ignored from the micro-batch that finds one.
        """
        self.has_fragments |= chain is not None
        if chain is not None and chain.last_seen_offset is not None:
            self.last_seen_offset = max(self.last_seen_offset, chain.last_seen_offset)
        if chain is not None and chain.gap is not None:
            self._set_aside(chain.gap)
        if self.gap is not None:
            return None
        reports = {shape_group: report.after(self.ack_lsn) for shape_group, report in reports.items()}
        entries = {shape_group: report.pending for shape_group, report in reports.items()}
        for shape_group, report in reports.items():
            previous = self._reports.pop(shape_group, None)
            self.pending_shapes += report.pending_shapes - (previous.pending_shapes if previous else 0)
            if entries[shape_group] is not None:
                self._reports[shape_group] = report
        ack_lsn = self._tracker.apply(entries, chain.last_seen_offset if chain else None)
        # The first ten shapes overall are in the groups whose first shapes are the least.
        groups = self._tracker.least_flushed(HOLDERS)
        self.holders = tuple(nsmallest(HOLDERS, (shape for group in groups for shape in self._reports[group].holders)))
        self.removed = frozenset(shape_id for report in reports.values() for shape_id in report.removed)
        return ack_lsn

    def _set_aside(self, gap: str) -> None:
        self.gap, self._tracker, self._reports = gap, FlushTracker(self.ack_lsn), {}
        self.pending_shapes, self.holders, self.removed = 0, (), frozenset()

    def held_bytes(self, shape: PendingShape) -> int:
        """The WAL that ``shape`` holds, in bytes: from the ack that it allows, just before its first pending commit, to
        the last commit seen. The first holder holds everything unacknowledged.
        """
        return max(self.last_seen_offset.tx_offset - max(self.ack_lsn, shape.last_flushed.tx_offset - 1), 0)

    def ack_if_removed(self, rank: int) -> int:
        """The ack if ``holders[rank]`` alone were removed now, but at most the last commit seen or the present ack.

        Removing any but the first changes nothing, because the first holds at least as much.
        """
        return self.ack_lsn if rank > 0 else self._ack_without_first(1)

    def ack_if_all_removed(self, rank: int) -> int | None:
        """The ack if ``holders[rank]`` and all before it were removed now, with the same limits.

        ``None`` where it is not known: it depends on the next pending shape, and only :data:`HOLDERS` are listed.
        """
        removed = rank + 1
        is_known = removed < len(self.holders) or removed == self.pending_shapes
        return self._ack_without_first(removed) if is_known else None

    def _ack_without_first(self, removed: int) -> int:
        """The ack without the first ``removed`` holders; assumes that the next pending shape is listed, or none is
        left.
        """
        ack_lsn = self.last_seen_offset.tx_offset
        if removed < len(self.holders):
            ack_lsn = min(ack_lsn, self.holders[removed].last_flushed.tx_offset - 1)
        return max(self.ack_lsn, ack_lsn)

    def pending_since_ms(self) -> list[int]:
        """When each listed shape became pending or last made progress, in ms; each group lists at most ten."""
        return [shape.since_ms for report in self._reports.values() for shape in report.holders]

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` if the tracker and the reports disagree; for tests."""
        self._tracker.check_invariants()
        pending = {group: report.pending for group, report in self._reports.items()}
        if pending != dict(self._tracker.pending):
            raise AssertionError(f"the tracker has {dict(self._tracker.pending)}, but the reports have {pending}")
        pending_shapes = sum(report.pending_shapes for report in self._reports.values())
        if pending_shapes != self.pending_shapes:
            raise AssertionError(f"pending_shapes is {self.pending_shapes}, but the reports add up to {pending_shapes}")
        listed = sorted(shape for report in self._reports.values() for shape in report.holders)
        if self.holders != tuple(listed[:HOLDERS]):
            raise AssertionError(f"the holders are {self.holders}, but the reports have {listed}")


class SourceTrackers(Mapping[str, SourceTracker]):
    """A tracker for each source that has reported. On a source's first report, ``last_ack`` is asked for its durable
    ack.
    """

    def __init__(self, last_ack: Callable[[str], int | None]) -> None:
        self._last_ack = last_ack
        self._trackers: dict[str, SourceTracker] = {}

    def apply(self, rows: Iterable[ReportRow]) -> dict[str, int]:
        """Apply the reports of one micro-batch, in any order; return the new ack of each source whose ack advanced."""
        for tracker in self._trackers.values():
            # The loop below skips sources without a report; nothing of theirs was removed in this micro-batch.
            tracker.removed = frozenset()
        groups: dict[str, dict[str, GroupReport]] = defaultdict(dict)
        chains: dict[str, ChainReport] = {}
        for source, shape_group, report in rows:
            if shape_group == CHAIN:
                chains[source] = ChainReport.from_json(report)
            else:
                groups[source][shape_group] = GroupReport.from_json(report)
        acks = {}
        for source in sorted({*groups, *chains}):
            ack_lsn = self._tracker(source).apply(groups[source], chains.get(source))
            if ack_lsn is not None:
                acks[source] = ack_lsn
        return acks

    def gaps(self) -> dict[str, str]:
        """The gaps by source, without retired sources, which no ack is needed for."""
        return {name: gap for name in self._current() if (gap := self[name].gap) is not None}

    @property
    def all_set_aside(self) -> bool:
        """Whether every source has a gap, so that none can get an ack."""
        current = self._current()
        return bool(current) and len(self.gaps()) == len(current)

    def _current(self) -> list[str]:
        """The sources that have fragments, and are not retired by another one of these.

        A source with notifications only does not count: its name could retire one with a gap.
        """
        found = [name for name, each in self.items() if each.has_fragments]
        retired = successors(found)
        return [name for name in found if name not in retired]

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
