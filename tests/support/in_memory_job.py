"""The tracking job without Spark: micro-batches of events in, acks out, with a checkpoint that survives a kill.

It runs the same core in the same order as the Spark job, so both must give the same acks for the same batches:

1. Unpack the state of each ``FragmentChain`` (one per source) and each ``ShapeGroup`` (one per source and group) that
   the batch has events for, apply the events, and pack the new state together with its report.
2. Apply the reports to the driver's ``SourceTrackers``. The ack table appends each ack that has advanced.
3. Commit: replace these states in the checkpoint.

The driver can be killed before step 2 or before step 3; a new job on the same table and checkpoint is the restart. A
replayed batch gives the same acks, which the table does not append again. Invariants are checked after each step.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from flushtracker.events.stream_events import FlushNotification, FragmentEvent
from flushtracker.tracking.fragment_chain import FragmentChain, Link
from flushtracker.tracking.shape_group import ShapeFlush, ShapeFragment, ShapeGroup
from flushtracker.tracking.source_tracker import CHAIN, ChainReport, Report, SourceTrackers
from flushtracker.wal.log_offset import LogOffset

Event = FragmentEvent | FlushNotification
GroupKey = tuple[str, str]

DEFAULT_MAX_PENDING: Final = 4096


class KilledError(Exception):
    """The driver was killed; its uncommitted work is lost."""


@dataclass(slots=True)
class AckTable:
    """The rows of the Delta table as (source, ack LSN); only acks greater than the source's last are appended."""

    rows: list[tuple[str, int]] = field(default_factory=list)

    def last_ack(self, source: str) -> int | None:
        return max((ack for row_source, ack in self.rows if row_source == source), default=None)

    def append(self, source: str, ack_lsn: int) -> None:
        last_ack = self.last_ack(source)
        if last_ack is None or ack_lsn > last_ack:
            self.rows.append((source, ack_lsn))

    def acks(self, source: str) -> list[int]:
        return [ack for row_source, ack in self.rows if row_source == source]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The committed state: the packed state and the last report of each chain and shape group."""

    states: Mapping[GroupKey, tuple[bytes, str]] = field(default_factory=dict)

    def groups(self) -> list[tuple[bytes, str]]:
        """The packed state and the last report of every shape group."""
        return [state for (_, shape_group), state in self.states.items() if shape_group != CHAIN]


@dataclass(slots=True)
class GroupInput:
    """One shape group's part of a micro-batch."""

    fragments: list[ShapeFragment] = field(default_factory=list)
    flushes: list[ShapeFlush] = field(default_factory=list)


class InMemoryJob:
    """One run of the job, from its start until it is killed; the table and the checkpoint survive it."""

    def __init__(
        self,
        table: AckTable,
        checkpoint: Checkpoint | None = None,
        *,
        shape_groups: int = 16,
        max_pending: int = DEFAULT_MAX_PENDING,
    ) -> None:
        self.table = table
        self.checkpoint = checkpoint or Checkpoint()
        self.trackers = SourceTrackers(table.last_ack)
        self._shape_groups = shape_groups
        self._max_pending = max_pending
        # New chains and groups start from the acks at the job's start, as in Spark's state function.
        self._first_acks = {source: self._last_ack(source) for source, _ in table.rows}
        self._restore()

    def run_batch(self, events: Iterable[Event], now_ms: int = 0, *, kill: str | None = None) -> None:
        """Process one micro-batch. ``kill``, if given, is where the driver dies: "before ack" or "before commit".

        Raises:
            GapError: a chain has a gap; nothing is acknowledged and nothing is committed.
            KilledError: the driver was killed at ``kill``.
        """
        links, inputs = self._rows(events)
        states = {key: self._run_group(key, rows, now_ms) for key, rows in inputs.items()}
        states |= {(source, CHAIN): self._run_chain(source, source_links) for source, source_links in links.items()}
        if kill == "before ack":
            raise KilledError
        for source, ack_lsn in self._apply(states).items():
            self.table.append(source, ack_lsn)
        if kill == "before commit":
            raise KilledError
        self.checkpoint = Checkpoint({**self.checkpoint.states, **states})

    def ack_lsn(self, source: str) -> int:
        return self._last_ack(source)

    def group_of(self, shape_id: str) -> str:
        """The group of a shape; any fixed hash works."""
        return str(crc32(shape_id.encode()) % self._shape_groups) if self._shape_groups else shape_id

    def kept_shapes(self) -> set[str]:
        """The shapes that have state in any group."""
        return {shape for packed, _ in self.checkpoint.groups() for shape in ShapeGroup.unpack(packed).shapes}

    def is_caught_up(self, source: str) -> bool:
        """Whether nothing is pending, as far as the driver knows."""
        tracker = self.trackers[source]
        return tracker.blocking() is None and tracker.pending_shapes == 0

    def _last_ack(self, source: str) -> int:
        last_ack = self.table.last_ack(source)
        return -1 if last_ack is None else last_ack

    def _start_of(self, source: str) -> LogOffset | None:
        return LogOffset.last_of(self._first_acks[source]) if source in self._first_acks else None

    def _restore(self) -> None:
        self._apply(self.checkpoint.states)
        # This appends only to a new table or one that was lost: any other has the acks that the committed state allows.
        for source, tracker in self.trackers.items():
            if tracker.ack_lsn >= 0:
                self.table.append(source, tracker.ack_lsn)

    def _rows(self, events: Iterable[Event]) -> tuple[dict[str, list[Link]], dict[GroupKey, GroupInput]]:
        links: dict[str, list[Link]] = {}
        inputs: dict[GroupKey, GroupInput] = {}
        for event in events:
            if isinstance(event, FlushNotification):
                flush = ShapeFlush(event.shape_id, event.offset, event.type == "removed")
                inputs.setdefault((event.source, self.group_of(event.shape_id)), GroupInput()).flushes.append(flush)
                continue
            is_commit, last = event.commit is not None, event.last_log_offset
            links.setdefault(event.source, []).append(Link(event.follows, last, event.start, is_commit, "a.jsonl:1"))
            for shape in event.shapes:
                row = ShapeFragment(shape.shape_id, shape.last_offset, last, is_commit)
                inputs.setdefault((event.source, self.group_of(shape.shape_id)), GroupInput()).fragments.append(row)
        return links, inputs

    def _run_group(self, key: GroupKey, rows: GroupInput, now_ms: int) -> tuple[bytes, str]:
        committed = self.checkpoint.states.get(key)
        if committed is None:
            group = ShapeGroup(self._start_of(key[0]) or LogOffset.before_all())
        else:
            group = ShapeGroup.unpack(committed[0])
        group.apply(rows.fragments, rows.flushes, now_ms=now_ms, max_pending=self._max_pending)
        group.check_invariants()
        return group.pack(), group.report().to_json()

    def _run_chain(self, source: str, links: list[Link]) -> tuple[bytes, str]:
        committed = self.checkpoint.states.get((source, CHAIN))
        if committed is None:
            chain = FragmentChain(source, self._start_of(source))
        else:
            chain = FragmentChain.unpack(source, committed[0])
        chain.extend(links)
        return chain.pack(), ChainReport(chain.last_seen_offset).to_json()

    def _apply(self, states: Mapping[GroupKey, tuple[bytes, str]]) -> dict[str, int]:
        """Run the driver's step; return the acks that advanced."""
        acks = self.trackers.apply(Report(*key, text) for key, (_, text) in states.items())
        for tracker in self.trackers.values():
            tracker.check_invariants()
        return acks


def run_job(
    batches: Iterable[Iterable[Event]], shape_groups: int = 16, max_pending: int = DEFAULT_MAX_PENDING
) -> InMemoryJob:
    """Run the batches on a new job and return it."""
    job = InMemoryJob(AckTable(), shape_groups=shape_groups, max_pending=max_pending)
    for batch in batches:
        job.run_batch(batch)
    return job
