"""``Replay``: turns a recording into the events that capture would publish.

Events are grouped into ticks; a tick is one file of each stream. The first tick has the registry's entries. A tick ends
when it has ``fragments_per_tick`` fragments.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from flushtracker.errors import DecodeError, ShapeError, listed
from flushtracker.events.fragment_sequencer import FragmentSequencer
from flushtracker.events.registry_events import ShapeEntry
from flushtracker.events.stream_events import FragmentEvent, ShapeChangesEvent
from flushtracker.events.topic_rules import MAX_EVENT_BYTES
from flushtracker.shapes.definition import ShapeDefinition
from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.shape_parts import has_subqueries
from flushtracker.trials.recordings.recording import RecordedMessage
from flushtracker.wal.changes import TableName, TransactionFragment
from flushtracker.wal.fragment_converter import FragmentConverter
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.lsn import format_lsn
from flushtracker.wal.pgoutput import Message, RelationMessage, decode

_RELATION: Final = b"R"
"""The first byte of the message that describes a table."""


@dataclass(slots=True)
class Tick:
    """Events that are published together: one file for each stream that has any."""

    shapes: list[ShapeEntry] = field(default_factory=list)
    shape_changes: list[ShapeChangesEvent] = field(default_factory=list)
    fragments: list[FragmentEvent] = field(default_factory=list)

    def events(self) -> Iterator[ShapeEntry | ShapeChangesEvent | FragmentEvent]:
        """Return all events in publishing order: entries, changes, then the fragments that refer to them."""
        return chain(self.shapes, self.shape_changes, self.fragments)


@dataclass(slots=True)
class ReplayCounts:
    """The number of events published so far; ``shape_ids`` has the shapes that took part in a transaction."""

    transactions: int = 0
    fragments: int = 0
    changes: int = 0
    shape_ids: set[str] = field(default_factory=set)
    last_commit: LogOffset | None = None


class Replay:
    """One pass over one recording for ``source`` and the shapes of ``definitions``; updates ``counts``.

    Raises:
        ShapeError: a definition is not valid. ValueError: a limit is below 1.
    """

    def __init__(
        self,
        source: str,
        definitions: Sequence[ShapeDefinition],
        *,
        max_batch_size: int = 100,
        max_tx_size: int | None = None,
        fragments_per_tick: int = 20,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        if fragments_per_tick < 1:
            raise ValueError(f"fragments_per_tick is {fragments_per_tick}, but must be at least 1")
        self.counts = ReplayCounts()
        self._source = source
        self._fragments_per_tick = fragments_per_tick
        self._max_event_bytes = max_event_bytes
        self._converter = FragmentConverter(max_batch_size, max_tx_size)
        self._router = EventRouter(definitions)
        self._definitions = definitions
        self._sequencer: FragmentSequencer | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether the input so far ends inside a transaction."""
        return self._converter.in_transaction

    def ticks(self, frames: Iterable[RecordedMessage]) -> Iterator[Tick]:
        """Yield the events of the whole recording; one tick is in memory at a time.

        Raises:
            DecodeError: a frame cannot be read, or a row cannot be routed. GapError: the recording goes back to an
                earlier transaction. ShapeError: a shape does not fit its table.
        """
        tick = Tick()
        for number, frame in enumerate(frames, start=1):
            for fragment in self._converter.handle(_decode_frame(number, frame)):
                self._handle_fragment(fragment, tick)
            if len(tick.fragments) >= self._fragments_per_tick:
                yield self._counted(tick)
                tick = Tick()
        if tick.fragments:
            yield self._counted(tick)

    def _handle_fragment(self, fragment: TransactionFragment, tick: Tick) -> None:
        if self._sequencer is None:
            # A recording does not have the LSN that was confirmed when it began. The first commit's LSN is the safe
            # choice, because it is unknown whether transactions before it are missing.
            self._sequencer = FragmentSequencer(self._source, fragment.lsn, max_event_bytes=self._max_event_bytes)
            starts_after = LogOffset.just_before(fragment.lsn)
            # A recording has no catalog, and so no OIDs, and no server for snapshots.
            definitions = [replace(definition, snapshot=False) for definition in self._definitions]
            tick.shapes += [ShapeEntry(self._source, definition, 0, starts_after) for definition in definitions]
        published = self._sequencer.sequence(fragment, self._router.route(fragment))
        tick.fragments += published.fragments
        tick.shape_changes += published.shape_changes
        self.counts.changes += fragment.change_count

    def _counted(self, tick: Tick) -> Tick:
        counts = self.counts
        counts.fragments += len(tick.fragments)
        for fragment in tick.fragments:
            counts.shape_ids.update(shape.shape_id for shape in fragment.shapes)
            if fragment.commit is not None:
                counts.transactions += 1
                counts.last_commit = fragment.last_log_offset
        return tick


def require_tables(definitions: Iterable[ShapeDefinition], frames: Iterable[RecordedMessage]) -> None:
    """Check that the recording describes the table of every shape, or one of its partitions.

    Raises:
        ShapeError: the table of a shape is not in the recording, because it is misspelled or nothing changed in it, or
            a shape has subqueries. DecodeError: the description of a table cannot be read.
    """
    tables: set[TableName] = set()
    for number, frame in enumerate(frames, start=1):
        if frame.data[:1] == _RELATION and isinstance(message := _decode_frame(number, frame), RelationMessage):
            tables.add(message.relation.table)
    for definition in definitions:
        if has_subqueries(definition):
            raise ShapeError(
                f"{definition.subject('where')}: where has subqueries, whose columns need types that only a catalog "
                "has; a recording is replayed without"
            )
        if tables.isdisjoint((definition.table, *definition.partitions)):
            names = listed([".".join(table) for table in sorted(tables)], 10) or "no table at all"
            raise ShapeError(
                f"shape {definition.id!r}: the recording has no changes of {'.'.join(definition.table)}; it has {names}"
            )


def _decode_frame(number: int, frame: RecordedMessage) -> Message:
    try:
        return decode(frame.data)
    except DecodeError as error:
        raise DecodeError(f"frame {number}, at {format_lsn(frame.wal_start)}: {error}") from error
