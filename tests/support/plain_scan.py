"""The router without its index: it tests every change against every shape of the table. Slow and obviously correct."""

from collections.abc import Sequence

from flushtracker.shapes.event_router import EventRouter
from flushtracker.shapes.shape_index import IndexedShape, ShapeIndex
from flushtracker.wal.changes import Change


class PlainScan(ShapeIndex):
    """Returns every shape of the table as a candidate."""

    def candidates(self, change: Change, lsn: int) -> Sequence[IndexedShape]:  # noqa: ARG002
        return [indexed for indexed in self._shapes.values() if indexed.starts_after < lsn]


class PlainRouter(EventRouter):
    _index_type = PlainScan
