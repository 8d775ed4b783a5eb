"""The router without its index, which asks every shape of a table about every change: slow, and plainly right."""

from collections.abc import Sequence

from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.shape_index import IndexedShape, ShapeIndex
from flushtracker.wal.changes import Change


class PlainScan(ShapeIndex):
    """Finds all shapes of the table."""

    def candidates(self, change: Change, lsn: int) -> Sequence[IndexedShape]:
        if change.relation is not self._relation:
            self._meet(change.relation)
        return [indexed for indexed in self._shapes.values() if indexed.starts_after < lsn]


class PlainRouter(EventRouter):
    _index_type = PlainScan
