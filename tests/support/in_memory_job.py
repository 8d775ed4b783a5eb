"""The job without Spark: micro-batches of events in, acks in a table out, with a checkpoint that survives a kill.

It runs the core as the Spark job does: one ``FragmentChain`` per source and one ``ShapeGroup`` per source and group,
both kept as packed bytes, and on the driver the ``SourceTrackers`` over their reports. Whatever has invariants is
checked after each step.
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
    """The driver's process is gone; what it had not committed is lost."""


@dataclass(slots=True)
class AckTable:
    """The rows of the Delta table, as (source, ack): appended only when greater than the source's last."""

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
    """What Spark has committed: of each chain and shape group the packed state, and the report that it emitted last."""

    states: Mapping[GroupKey, tuple[bytes, str]] = field(default_factory=dict)

    def groups(self) -> list[tuple[bytes, str]]:
        """The packed state and the last report of every shape group."""
        return [state for (_, shape_group), state in self.states.items() if shape_group != CHAIN]


@dataclass(slots=True)
class GroupInput:
    """One group's part of a micro-batch."""

    fragments: list[ShapeFragment] = field(default_factory=list)
    flushes: list[ShapeFlush] = field(default_factory=list)


class InMemoryJob:
    """One run of the job, from its start to its kill; the table and the checkpoint outlive it."""

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
        # As Spark's state function has them: those at the job's start.
        self._first_acks = {source: self._last_ack(source) for source, _ in table.rows}
        self._restore()

    def run_batch(self, events: Iterable[Event], now_ms: int = 0, *, kill: str | None = None) -> None:
        """Take one micro-batch. ``kill``: "before ack" or "before commit", then ``KilledError``.

        Raises:
            GapError: as the chain does; nothing is acknowledged and nothing committed.
        """
        links, inputs = self._rows(events)
        states = {key: self._run_group(key, rows, now_ms) for key, rows in inputs.items()}
        states |= {(source, CHAIN): self._run_chain(source, of_source) for source, of_source in links.items()}
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
        """The group of a shape; any fixed hash will do."""
        return str(crc32(shape_id.encode()) % self._shape_groups) if self._shape_groups else shape_id

    def kept_shapes(self) -> set[str]:
        """The shapes that any group remembers something about."""
        return {shape for packed, _ in self.checkpoint.groups() for shape in ShapeGroup.unpack(packed).shapes}

    def is_caught_up(self, source: str) -> bool:
        """Whether the driver knows of nothing pending."""
        tracker = self.trackers[source]
        return tracker.blocking() is None and tracker.pending_shapes == 0

    def _last_ack(self, source: str) -> int:
        last_ack = self.table.last_ack(source)
        return -1 if last_ack is None else last_ack

    def _start_of(self, source: str) -> LogOffset | None:
        return LogOffset.last_of(self._first_acks[source]) if source in self._first_acks else None

    def _restore(self) -> None:
        self._apply(self.checkpoint.states)
        # Only a lost or new table lacks what the committed state allows.
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
        """The driver's own step; returns the acks that advanced."""
        acks = self.trackers.apply(Report(*key, text) for key, (_, text) in states.items())
        for tracker in self.trackers.values():
            tracker.check_invariants()
        return acks


def run_job(
    batches: Iterable[Iterable[Event]], shape_groups: int = 16, max_pending: int = DEFAULT_MAX_PENDING
) -> InMemoryJob:
    """A job that has run the batches from an empty start."""
    job = InMemoryJob(AckTable(), shape_groups=shape_groups, max_pending=max_pending)
    for batch in batches:
        job.run_batch(batch)
    return job
