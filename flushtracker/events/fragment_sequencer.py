"""``FragmentSequencer``: a fragment and what the router made of it, as the events that go out.

The fragments of a source are a chain: each event says which offset it follows, so that a reader notices when one is
missing. The chain starts at the LSN from which the server sends: everything that commits at or above it is sent again,
hence "nothing is missing between just below that LSN and the first fragment" is true.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from flushtracker.errors import GapError
from flushtracker.events.stream_events import FragmentEvent, FragmentShape, ShapeChangesEvent
from flushtracker.shapes.event_router import RoutedFragment
from flushtracker.wal.changes import TransactionFragment
from flushtracker.wal.log_offset import LogOffset


@dataclass(frozen=True, slots=True)
class SequencedFragment:
    """One fragment's events: its metadata for the tracker, and each shape's part for that shape's writer."""

    fragment: FragmentEvent
    shape_changes: tuple[ShapeChangesEvent, ...]


class FragmentSequencer:
    """One source's chain, from ``confirmed_lsn`` on, the slot's ``confirmed_flush_lsn``.

    It knows no more than the offset that the next fragment follows. After a reconnect the server sends again from the
    confirmed LSN, so take a fresh one.
    """

    def __init__(self, source: str, confirmed_lsn: int) -> None:
        self._source = source
        self._follows = LogOffset.just_before(confirmed_lsn)
        self._start = True

    def publish(self, fragment: TransactionFragment, routed: Iterable[RoutedFragment]) -> SequencedFragment:
        """The events of ``fragment``, given what :meth:`EventRouter.route` returned for it.

        The metadata names every shape that the router named; a removed one gets no changes.

        Raises:
            GapError: the fragment is not past the one before.
        """
        if fragment.last_log_offset <= self._follows:
            raise GapError(
                f"source {self._source}: fragment {fragment.last_log_offset} comes after {self._follows}, but a chain "
                "of fragments only rises; connect again and start a new one"
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
        return SequencedFragment(event, tuple(self._shape_changes(part) for part in routed if not part.removed))

    def _shape_changes(self, part: RoutedFragment) -> ShapeChangesEvent:
        return ShapeChangesEvent(
            source=self._source,
            shape_id=part.shape_id,
            xid=part.xid,
            last_log_offset=part.last_log_offset,
            has_begin=part.has_begin,
            commit=part.commit,
            items=part.items,
        )
