"""``FragmentSequencer``: turns a fragment and its routing into the events to publish.

The fragments of a source form a chain: each event carries the offset that it follows, so that a reader can detect a
missing one. The server resends every transaction that commits at or above the slot's confirmed LSN. The first event
therefore follows the offset just below that LSN and is marked ``start``: nothing is missing in between.

The events of each shape form a chain of their own in the same way, for the shape's writer.
"""

from collections.abc import Iterable

from flushtracker.errors import GapError
from flushtracker.events.stream_events import FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.shapes.routed_fragment import RoutedFragment
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.log_offset import LogOffset
from flushtracker.wal.value import value


@value(frozen=True, slots=True)
class SequencedFragment:
    """The events of one fragment: its metadata for the tracker, and the changes of each shape for its writer."""

    fragment: FragmentEvent
    shape_changes: tuple[ShapeChangesEvent, ...]


class FragmentSequencer:
    """One source's chain, starting at ``confirmed_lsn``, the slot's ``confirmed_flush_lsn``.

    Its state is the offset that the next fragment follows, and for each shape that had an event, the end of its last.
    Create a new sequencer after a reconnect, because the server resends from the confirmed LSN.
    """

    def __init__(self, source: str, confirmed_lsn: int) -> None:
        self._source = source
        self._chain_start = LogOffset.just_before(confirmed_lsn)
        self._follows = self._chain_start
        self._start = True
        self._last_of_shape: dict[str, LogOffset] = {}

    @property
    def shapes_with_events(self) -> int:
        """How many shapes have had an event and were not removed inside a transaction since."""
        return len(self._last_of_shape)

    def sequence(self, fragment: TransactionFragment, routed: Iterable[RoutedFragment]) -> SequencedFragment:
        """Return the events of ``fragment``, given the parts that :meth:`EventRouter.route` returned for it.

        The metadata lists every shape that the router returned; a removed shape gets no changes.

        Raises:
            GapError: the fragment is not past the one before it.
        """
        if fragment.last_log_offset <= self._follows:
            raise GapError(
                f"source {self._source}: fragment {fragment.last_log_offset} is not past {self._follows}, the end of "
                "the chain; reconnect and start a new chain"
            )
        routed = tuple(routed)
        event = FragmentEvent(
            source=self._source,
            xid=fragment.xid,
            lsn=fragment.lsn,
            follows=self._follows,
            last_log_offset=fragment.last_log_offset,
            start=self._start,
            has_begin=fragment.has_begin,
            commit=fragment.commit,
            shapes=tuple(FragmentShape(part.shape_id, part.last_offset, part.change_count) for part in routed),
        )
        self._follows, self._start = fragment.last_log_offset, False
        for part in routed:
            if part.removed:
                self._last_of_shape.pop(part.shape_id, None)
        return SequencedFragment(event, tuple(self._linked(part) for part in routed if not part.removed))

    def _linked(self, part: RoutedFragment) -> ShapeChangesEvent:
        last = self._last_of_shape.get(part.shape_id)
        self._last_of_shape[part.shape_id] = part.last_log_offset
        return shape_changes(self._source, part, self._chain_start if last is None else last, start=last is None)


def shape_changes(source: str, part: RoutedFragment, follows: LogOffset, *, start: bool) -> ShapeChangesEvent:
    """The event that a shape's writer gets for its part of a fragment."""
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
    )
