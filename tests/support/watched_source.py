"""``WatchedSource``: a source of a simulation with its oracle, and what must hold of its ack after each batch.

- *Safety.* The ack confirms no transaction that is not safe by definition (:mod:`tests.support.exact_ack`), and it
  never goes back.
- *Exactness.* It confirms every transaction that is. This is not asked while events that a lost state had are read
  again, nor after a shape had more pending transactions than the limit, until all is flushed. The same goes for a
  driver that starts after flushes of removed shapes were deleted: if its state is from before it read these, a group
  may show such a shape as pending until the group's next event.
- *Set aside.* Only a source that has lost a fragment is set aside, and nothing more of it is acknowledged. The others
  stay exact.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from flushtracker.events.stream_events import FragmentEvent
from flushtracker.tracking.group_report import HOLDERS
from flushtracker.tracking.source_tracker import SourceTracker
from flushtracker.wal.log_offset import LogOffset
from tests.support.exact_ack import Delivered
from tests.support.random_wal import SHAPES, random_history
from tests.support.scenario import Scenario
from tests.support.simulated_streams import SimulatedSource, Streams
from tests.support.wal_history import Event

_MANY_SHAPES: Final = (*SHAPES, *(f"shape-{number}" for number in range(8)))


@dataclass(slots=True)
class WatchedSource:
    """A source with its oracle. ``unread`` is what must be read before the ack is exact again, if anything is."""

    source: SimulatedSource
    oracle: Delivered
    ack_lsn: int = -1
    read: LogOffset = field(default_factory=LogOffset.before_all)
    read_again: LogOffset = field(default_factory=LogOffset.before_all)
    unread: tuple[LogOffset, int] | None = None
    merged: bool = False
    has_forgotten: bool = False
    """Whether flushes of removed shapes were deleted."""
    outdated: bool = False
    """Whether a driver has started since, perhaps on a state from before these were read."""
    begin: int = 0
    """The Kafka offset from which the checkpoint's chain of this source begins."""

    @classmethod
    def of(cls, scenario: Scenario, number: int, streams: Streams) -> "WatchedSource":
        rng = Random(scenario.seed * 31 + number)  # noqa: S311  a reproducible history
        history = random_history(
            rng,
            # Of different servers, or of one after a failover, so that only the last is current.
            f"{7301 + number}/1/shapes" if scenario.seed % 3 else f"7301/{number + 1}/shapes",
            scenario.size,
            bare_commits=rng.random() < 0.3,
            shapes=_MANY_SHAPES if scenario.many_shapes else SHAPES,
        )
        source = SimulatedSource(history, number % len(streams.fragments), streams)
        return cls(source, Delivered(history))

    @property
    def name(self) -> str:
        return self.source.name

    def deliver(self, events: Iterable[Event]) -> None:
        """Note the events of a batch that the driver is given."""
        events = [event for event in events if event.source == self.name]
        self.oracle.add(events)
        for event in events:
            if isinstance(event, FragmentEvent):
                reached = event.last_log_offset.reached(is_commit=event.commit is not None)
                self.read = max(self.read, reached)
                self.read_again = max(self.read_again, reached)

    def start_over(self, flushes: int, *, merges: bool) -> None:
        """Another checkpoint is used: what it has forgotten is read again, up to the end of the ``flushes``.

        A transaction that was open is read to its end: a resend is cut otherwise, and may say less up to a place.
        """
        has_read = self.read > LogOffset.before_all()
        self.unread = LogOffset.last_of(self.read.tx_offset) if has_read else self.read, flushes
        self.read_again = LogOffset.before_all()
        self.merged = merges

    def note_merges(self, max_pending: int) -> None:
        """Note whether a committed batch may have merged transactions, also if its driver is not checked."""
        # A shape has at most one pending entry for each transaction.
        if len(self.source.history.txns) > max_pending:
            self.merged |= self.oracle.most_pending() > max_pending

    def check_safety(self, last_acks: Mapping[str, int], tracker: SourceTracker | None) -> None:
        ack_lsn = last_acks.get(self.name, -1)
        assert ack_lsn >= self.ack_lsn, f"the ack goes back from {self.ack_lsn} to {ack_lsn}"
        if ack_lsn != self.ack_lsn:
            self.oracle.assert_safe(ack_lsn)
        self.ack_lsn = ack_lsn
        assert tracker is None or tracker.pending_shapes >= 0

    def check_set_aside(self) -> None:
        """Check that a fragment was lost since the checkpoint begins."""
        assert any(offset >= self.begin for offset in self.source.damages), f"no fragment of {self.name} was lost"

    def check_exactness(self, flushes_read: int, tracker: SourceTracker | None, max_pending: int) -> None:
        """Check the ack after a batch, and what the driver tells of the pending shapes."""
        if self.unread is not None:
            fragments, flushes = self.unread
            if self.read_again >= fragments and flushes_read >= flushes:
                self.unread = None
        if tracker is not None and tracker.gap is not None:
            self.check_set_aside()
            return
        if self.unread is not None or tracker is None:
            return
        if self.oracle.is_idle():
            self.merged = self.outdated = False
        if self.outdated:
            return
        self.note_merges(max_pending)
        if not self.merged:
            self.oracle.assert_exact(self.ack_lsn)
        pending, holders = self.oracle.pending_shapes(), tracker.holders
        assert tracker.pending_shapes == len(pending), f"{tracker.pending_shapes} pending, but {pending} are"
        assert len(holders) == min(len(pending), HOLDERS)
        assert {(shape.shape_id, shape.writer) for shape in holders} <= pending, f"{holders}, but {pending} are"
