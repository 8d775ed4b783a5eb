"""``ChangeCounts``: how many changes concerned a shape, and how many none."""

from collections.abc import Sequence

from flushtracker.shapes.routed_fragment import RoutedFragment


class ChangeCounts:
    """The changes of the transactions that have ended on one connection; what is sent again counts again.

    One thread writes; any thread may read ``matched`` and ``unmatched``, which only increase. Nothing is counted change
    by change: a fragment knows how many of its changes each shape got, and a transaction how many it has.
    """

    def __init__(self) -> None:
        self.matched = 0
        self.unmatched = 0
        self._open_matched = 0
        self._committed = 0

    def handle_fragment(self, routed: Sequence[RoutedFragment]) -> None:
        """A fragment was routed to these shapes."""
        if len(routed) == 1:
            self._open_matched += routed[0].change_count
        elif routed:
            # A change has an even offset; the second item of a split update has the one after it.
            self._open_matched += len({item.offset.op_offset >> 1 for part in routed for item in part.items})

    def handle_commit(self, committed_changes: int) -> None:
        """A transaction has ended; with it, ``committed_changes`` have arrived in all."""
        changes = committed_changes - self._committed
        self.matched += self._open_matched
        self.unmatched += changes - self._open_matched
        self._open_matched, self._committed = 0, committed_changes
