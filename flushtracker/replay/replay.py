"""``Replay``: turns a recording into the events that capture and the shapes' writers would publish.

Events are grouped into ticks; a tick is one file of each stream. A tick has at least ``fragments_per_tick`` fragments,
and normally ends only when it also has a flush notification, so that the n-th files of fragments and of flushes belong
together; if no flush comes up, it ends when it is ten times as long. After the last fragment, ticks of flushes alone
follow, until everything is flushed.

Time is the recording's own, taken from its commits: a writer that flushes every second does so once in each second of
the workload, however fast it is replayed. After the last commit, time keeps running.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Final

from flushtracker.errors import DecodeError
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.stream_events import FlushNotification, FragmentEvent, ShapeChangesEvent
from flushtracker.files.recording import RecordedMessage
from flushtracker.replay.simulated_writers import SimulatedWriters
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.pgoutput import Message, decode

_RESTART_EVERY: Final = 10
"""After this many ticks the writers restart, and repeat their last notifications."""

_WAIT_FACTOR: Final = 10
"""A tick without a flush ends at this multiple of its normal length."""

_FINAL_STEP_MS: Final = 250
"""After the last fragment, flushes that fall due within this time are one tick."""


@dataclass(slots=True)
class Tick:
    """What is published together: one file of each stream that has events."""

    fragments: list[FragmentEvent] = field(default_factory=list)
    flushes: list[FlushNotification] = field(default_factory=list)
    shape_changes: list[ShapeChangesEvent] = field(default_factory=list)

    def events(self) -> Iterator[ShapeChangesEvent | FragmentEvent | FlushNotification]:
        """All events in publishing order: changes, then the fragments that refer to them, then flushes."""
        return chain(self.shape_changes, self.fragments, self.flushes)


@dataclass(slots=True)
class ReplayCounts:
    """What a replay has published so far. ``shape_ids``: the shapes that took part in a transaction."""

    transactions: int = 0
    fragments: int = 0
    changes: int = 0
    flushes: int = 0
    shape_ids: set[str] = field(default_factory=set)
    last_commit: LogOffset | None = None


class Replay:
    """One pass over one recording, for ``source`` and the shapes of ``definitions``; ``counts`` is kept up to date.

    Raises:
        ShapeError: a definition is refused.
        ValueError: a limit is below 1.
    """

    def __init__(
        self,
        source: str,
        definitions: Sequence[ShapeDefinition],
        *,
        max_batch_size: int = 100,
        max_tx_size: int | None = None,
        fragments_per_tick: int = 12,
    ) -> None:
        if fragments_per_tick < 1:
            raise ValueError(f"fragments_per_tick is {fragments_per_tick}, but must be at least 1")
        self.counts = ReplayCounts()
        self._source = source
        self._fragments_per_tick = fragments_per_tick
        self._converter = FragmentConverter(max_batch_size, max_tx_size)
        self._router = EventRouter(definitions)
        self._writers = SimulatedWriters(source, definitions)
        self._sequencer: FragmentSequencer | None = None
        self._now_ms = 0

    @property
    def in_transaction(self) -> bool:
        """Whether what was read so far ends inside a transaction."""
        return self._converter.in_transaction

    def ticks(self, frames: Iterable[RecordedMessage]) -> Iterator[Tick]:
        """The events of the whole recording; one tick is in memory at a time.

        Raises:
            DecodeError: a frame cannot be read, or a row cannot be routed.
            GapError: the recording goes back to an earlier transaction.
            ShapeError: a shape does not fit its table.
        """
        tick = Tick()
        ticks = 0
        for number, frame in enumerate(frames, start=1):
            for fragment in self._converter.handle(_decode_frame(number, frame)):
                self._handle_fragment(fragment, tick)
            if len(tick.fragments) >= self._fragments_per_tick * (1 if tick.flushes else _WAIT_FACTOR):
                yield self._counted(tick)
                tick = Tick()
                ticks += 1
                if ticks % _RESTART_EVERY == 0:
                    tick.flushes += self._writers.restart()
        if tick.fragments or tick.flushes:
            yield self._counted(tick)
        yield from self._flush_the_rest()

    def _handle_fragment(self, fragment: TransactionFragment, tick: Tick) -> None:
        """Route one fragment, and add its events and the flushes that it causes to ``tick``."""
        if self._sequencer is None:
            # A recording does not include the LSN that was confirmed when it began. The first commit's own LSN is the
            # safe choice: whether anything is missing below it is unknown.
            self._sequencer = FragmentSequencer(self._source, fragment.lsn)
        published = self._sequencer.sequence(fragment, self._router.route(fragment))
        tick.fragments.append(published.fragment)
        tick.shape_changes += published.shape_changes
        if fragment.commit is not None:
            self._now_ms = max(self._now_ms, _timestamp_ms(fragment.commit.commit_timestamp))
        tick.flushes += self._writers.take(published.shape_changes, self._now_ms)
        tick.flushes += self._writers.advance(self._now_ms)
        self.counts.changes += fragment.change_count

    def _flush_the_rest(self) -> Iterator[Tick]:
        """Advance time until no interval is running; flush what still waits for more bytes last."""
        while (due_ms := self._writers.next_due_ms()) is not None and not self.in_transaction:
            flushes = self._writers.advance(due_ms + _FINAL_STEP_MS)
            yield self._counted(Tick(flushes=flushes))
        if flushes := self._writers.flush_all():
            yield self._counted(Tick(flushes=flushes))

    def _counted(self, tick: Tick) -> Tick:
        counts = self.counts
        counts.fragments += len(tick.fragments)
        counts.flushes += len(tick.flushes)
        for fragment in tick.fragments:
            counts.shape_ids.update(shape.shape_id for shape in fragment.shapes)
            if fragment.commit is not None:
                counts.transactions += 1
                counts.last_commit = fragment.last_log_offset
        return tick


def _decode_frame(number: int, frame: RecordedMessage) -> Message:
    try:
        return decode(frame.data)
    except DecodeError as error:
        raise DecodeError(f"frame {number}, at {format_lsn(frame.wal_start)}: {error}") from error


def _timestamp_ms(text: str) -> int:
    """Milliseconds since 1970 of a commit's timestamp, ISO 8601 in UTC."""
    # Python 3.10 does not accept the Z.
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
