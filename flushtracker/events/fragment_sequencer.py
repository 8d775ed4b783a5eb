"""``FragmentSequencer``: turns a fragment and its routing into the events to publish.

The fragments of a source form a chain: each event carries the offset that it follows, so that a reader can detect a
missing one. The server resends every transaction that commits at or above the slot's confirmed LSN. The first event
therefore follows the offset just below that LSN and is marked ``start``: nothing is missing in between.
"""

from collections.abc import Iterable

from flushtracker.errors import GapError
from flushtracker.events.stream_events import FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.shapes.event_router import RoutedFragment
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

    Its only state is the offset that the next fragment follows. Create a new sequencer after a reconnect, because the
    server resends from the confirmed LSN.
    """

    def __init__(self, source: str, confirmed_lsn: int) -> None:
        self._source = source
        self._follows = LogOffset.just_before(confirmed_lsn)
        self._start = True

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
        return SequencedFragment(event, tuple(shape_changes(self._source, part) for part in routed if not part.removed))


def shape_changes(source: str, part: RoutedFragment) -> ShapeChangesEvent:
    """The event that a shape's writer gets for its part of a fragment."""
    return ShapeChangesEvent(
        source=source,
        shape_id=part.shape_id,
        xid=part.xid,
        last_log_offset=part.last_log_offset,
        has_begin=part.has_begin,
        commit=part.commit,
        items=part.items,
    )
