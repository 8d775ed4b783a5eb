"""``SnapshotStore``: the destination of snapshots, and its state of the shapes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol

from flushtracker.errors import FlushtrackerError
from flushtracker.events.registry import Registry
from flushtracker.shape_log.shape_snapshot import ShapeKey
from flushtracker.shape_log.snapshot.due_shapes import DueTable
from flushtracker.shape_log.snapshot.live_snapshot_status import LiveSnapshotStatus


@dataclass(slots=True)
class Outcome:
    """The shapes of an attempt that now have a snapshot, and those that ``failed``, each with the reason."""

    taken: list[str] = field(default_factory=list)
    failed: dict[str, FlushtrackerError] = field(default_factory=dict)
    rows: int = 0
    seconds: float = 0.0


class SnapshotStore(Protocol):
    """Every method raises a ``FlushtrackerError`` if the store cannot be reached."""

    def takes(self, writer: str) -> bool: ...

    def has_changed(self) -> bool:
        """Whether the entries may have changed since the last call of :meth:`registry`."""
        ...

    def registry(self) -> Registry: ...

    def taken(self) -> Mapping[ShapeKey, int]:
        """The shapes that have a snapshot, with the incarnation of the last one."""
        ...

    def take(self, group: DueTable, stop: Event, live: LiveSnapshotStatus) -> Outcome:
        """Take the snapshots of the group's shapes in one attempt; readers see each completely or not at all.

        Raises:
            SnapshotStoppedError: ``stop`` was set before the end.
            TooLargeError: it takes, or would take, too long.
            FlushtrackerError: no shape of the group can have a snapshot now.
        """
        ...
