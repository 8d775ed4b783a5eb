"""``FragmentSequencer``: turns a fragment and its routing into the events to publish.

The fragments of a source form a chain: each event carries the offset that it follows, so that a reader can detect a
missing one. The server resends every transaction that commits at or above the slot's confirmed LSN. The first event
therefore follows the offset just below that LSN and is marked ``start``: nothing is missing in between.

The events of each shape form a chain of their own in the same way, for the shape's writer.

No metadata event exceeds a limit of bytes, however many shapes it names. A commit that lists too many is split into
list parts (:mod:`~flushtracker.wal.shape_list`). Any other fragment that names too many is not published, nor are later
fragments of its transaction: no ack depends on them, and the commit lists their shapes.
"""

from collections.abc import Iterable
from dataclasses import replace

from flushtracker.errors import GapError
from flushtracker.events.event_size import fits_within, split_list
from flushtracker.events.stream_events import FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.shape_list import listed_at
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class SequencedFragment:
    """The events of one fragment: its metadata for the tracker, and the changes of each shape for its writer.

    The metadata is normally one event. With too many shapes it is none (the commit lists them), or the parts of a
    commit's list.
    """

    fragments: tuple[FragmentEvent, ...]
    shape_changes: tuple[ShapeChangesEvent, ...]


class FragmentSequencer:
    """One source's chain, starting at ``confirmed_lsn``, the slot's ``confirmed_flush_lsn``.

    Its state is the offset that the next fragment follows, and the end of each shape's last event (until
    :meth:`forget`). It also has the shapes of the open transaction that no event has named yet. Create a new sequencer
    after a reconnect, because the server resends from the confirmed LSN.

    Metadata events have at most ``max_event_bytes``.
    """

    def __init__(self, source: str, confirmed_lsn: int, *, max_event_bytes: int) -> None:
        self._source = source
        self._max_event_bytes = max_event_bytes
        self._chain_start = LogOffset.just_before(confirmed_lsn)
        self._read = self._chain_start
        self._follows = self._chain_start
        self._start = True
        self._last_of_shape: dict[str, tuple[int, LogOffset]] = {}
        """By shape id: the incarnation and the end of its last event."""
        self._unnamed: dict[str, FragmentShape] = {}

    def forget(self, shape_id: str) -> None:
        """Drop a removed shape, which has no more events. Its next incarnation starts a new chain in any case."""
        self._last_of_shape.pop(shape_id, None)

    def sequence(self, fragment: TransactionFragment, routed: Iterable[RoutedFragment]) -> SequencedFragment:
        """Return the events of ``fragment``; ``routed`` is what :meth:`EventRouter.route` returned for it.

        The metadata lists every shape that the router returned; a removed shape gets no changes.

        Raises:
            GapError: the fragment is not past the previous one.
        """
        if fragment.last_log_offset <= self._read:
            raise GapError(
                f"source {self._source}: fragment {fragment.last_log_offset} is not past {self._read}, the end of "
                "the chain; reconnect and start a new chain"
            )
        routed = tuple(routed)
        self._read = fragment.last_log_offset
        events = self._metadata(fragment, routed)
        for part in routed:
            if part.removed:
                self.forget(part.shape_id)
        return SequencedFragment(events, tuple(self._linked(part) for part in routed if not part.removed))

    def _metadata(self, fragment: TransactionFragment, routed: Iterable[RoutedFragment]) -> tuple[FragmentEvent, ...]:
        shapes = [FragmentShape(part.shape_id, part.last_offset, part.change_count, part.writer) for part in routed]
        if self._unnamed:
            shapes = [_joined(self._unnamed.get(shape.shape_id), shape) for shape in shapes]
        event = FragmentEvent(
            source=self._source,
            xid=fragment.xid,
            lsn=fragment.lsn,
            follows=self._follows,
            last_log_offset=fragment.last_log_offset,
            start=self._start,
            has_begin=fragment.has_begin or (bool(self._unnamed) and self._follows.tx_offset < fragment.lsn),
            commit=fragment.commit,
            shapes=tuple(shapes),
        )
        fits = fits_within(self._max_event_bytes, event.shapes)
        if fragment.commit is None and (self._unnamed or not fits):
            self._unnamed.update((shape.shape_id, shape) for shape in shapes)
            return ()
        events = (event,) if fits else self._list_parts(event)
        self._follows, self._start = events[-1].last_log_offset, False
        self._unnamed.clear()
        return events

    def _list_parts(self, commit: FragmentEvent) -> tuple[FragmentEvent, ...]:
        """Split the commit into several events, each with some of its shapes."""
        *before, last = split_list(self._max_event_bytes, commit.shapes)
        parts = []
        for shapes in before:
            parts.append(replace(commit, last_log_offset=_end_of(commit.lsn, shapes), commit=None, shapes=shapes))
            commit = replace(commit, follows=parts[-1].last_log_offset, start=False, has_begin=False)
        parts.append(replace(commit, last_log_offset=_end_of(commit.lsn, last), shapes=last))
        return tuple(parts)

    def _linked(self, part: RoutedFragment) -> ShapeChangesEvent:
        incarnation, last = self._last_of_shape.get(part.shape_id, (part.incarnation, None))
        if part.incarnation != incarnation:
            # A new incarnation starts a new chain.
            last = None
        self._last_of_shape[part.shape_id] = part.incarnation, part.last_log_offset
        return shape_changes(self._source, part, self._chain_start if last is None else last, start=last is None)


def shape_changes(source: str, part: RoutedFragment, follows: LogOffset, *, start: bool) -> ShapeChangesEvent:
    """The event for a shape's writer with the shape's part of a fragment."""
    return ShapeChangesEvent(
        source=source,
        shape_id=part.shape_id,
        xid=part.xid,
        follows=follows,
        last_log_offset=part.last_log_offset,
        start=start,
        has_begin=part.has_begin,
        commit=part.commit,
        items=part.items,
        incarnation=part.incarnation,
        writer=part.writer,
        schema=part.schema,
    )


def _joined(before: FragmentShape | None, shape: FragmentShape) -> FragmentShape:
    """Merge a shape's parts of two fragments; the first one may not have been published."""
    if before is None:
        return shape
    last_offset = before.last_offset if shape.last_offset is None else shape.last_offset
    return replace(shape, last_offset=last_offset, change_count=before.change_count + shape.change_count)


def _end_of(lsn: int, shapes: Iterable[FragmentShape]) -> LogOffset:
    *_, last = shapes
    return LogOffset(lsn, listed_at(last.shape_id))
