"""Builds the events of one source by hand: a chain of fragments, and the flush notifications of its shapes."""

from collections.abc import Mapping
from dataclasses import replace

from flushtracker.events.stream_events import FlushNotification, FragmentEvent, FragmentShape
from flushtracker.wal.changes import Commit
from flushtracker.wal.log_offset import LogOffset


class SampleSource:
    """Each call returns the next event of the chain. Offsets are plain numbers: the commit LSN and the operation."""

    def __init__(self, name: str = "7301/1/shapes", confirmed_lsn: int = 1000) -> None:
        self.name = name
        self.restart(confirmed_lsn)

    def restart(self, confirmed_lsn: int) -> None:
        """Restart capture: the next fragment is a start that follows the confirmed LSN."""
        self._follows = LogOffset(confirmed_lsn - 1, 0)
        self._start = True

    def fragment(
        self, lsn: int, op: int, shapes: Mapping[str, int | None], *, commit: bool = False, writer: str = "log"
    ) -> FragmentEvent:
        """Part of the transaction at ``lsn``, up to operation ``op``. ``shapes``: shape → last operation, or None."""
        last = LogOffset(lsn, op)
        entries = [
            FragmentShape(
                shape_id, None if shape_op is None else LogOffset(lsn, shape_op), 0 if shape_op is None else 1, writer
            )
            for shape_id, shape_op in shapes.items()
        ]
        ends = Commit("2026-01-01T00:00:00.000000Z", lsn + 24) if commit else None
        event = FragmentEvent(
            source=self.name,
            xid=lsn,
            lsn=lsn,
            follows=self._follows,
            last_log_offset=last,
            start=self._start,
            has_begin=True,
            commit=ends,
            shapes=tuple(entries),
        )
        self._follows, self._start = last, False
        return event

    def transaction(self, lsn: int, *shape_ids: str, op: int = 0, writer: str = "log") -> FragmentEvent:
        """A whole transaction; its last operation is also every shape's last."""
        return self.fragment(lsn, op, dict.fromkeys(shape_ids, op), commit=True, writer=writer)

    def keepalive(self, lsn: int) -> FragmentEvent:
        """A keepalive: the server is idle and has sent everything up to ``lsn``."""
        return replace(self.transaction(lsn), xid=None)

    def flushed(self, shape_id: str, lsn: int, op: int = 0, writer: str = "log") -> FlushNotification:
        return FlushNotification(self.name, "flushed", shape_id, LogOffset(lsn, op), writer)

    def removed(self, shape_id: str, lsn: int, op: int = 0, writer: str = "log") -> FlushNotification:
        return FlushNotification(self.name, "removed", shape_id, LogOffset(lsn, op), writer)
