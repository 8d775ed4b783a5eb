"""``SnapshotStatus``: what the snapshots' job reports: what it reads now, what is left, and what has failed.

Times are milliseconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

SNAPSHOT: Final = "snapshot"
"""The ``program`` of the document."""


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """The attempt that runs: one MVCC snapshot of a table, read in ranges for some of its shapes.

    ``rows`` counts those of all shapes. ``seconds_left`` is ``None`` before a range is done.
    """

    source: str
    table: str
    shapes: int
    started_at_ms: int
    ranges: int
    ranges_done: int = 0
    rows: int = 0
    rows_per_s: int = 0
    seconds_left: int | None = None


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table with shapes that need a snapshot, or have got one since the start, of ``rows`` rows."""

    source: str
    table: str
    shapes_left: int
    shapes_taken: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ShapeFailure:
    """A shape whose attempts have failed since ``since_ms``, and that is not tried again before ``retry_at_ms``."""

    source: str
    shape_id: str
    table: str
    reason: str
    tries: int
    since_ms: int
    retry_at_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The job at ``at_ms``.

    ``waiting_shapes`` are not counted in ``tables``: capture has not yet said that their starts are visible.
    ``failures`` lists some of the ``failed_shapes``, those first that are retried first. ``server_error``: why the last
    look at the server or the tables found nothing out, ``None`` if it did.
    """

    at_ms: int
    started_at_ms: int
    attempt: AttemptStatus | None = None
    tables: tuple[TableStatus, ...] = ()
    waiting_shapes: int = 0
    failed_shapes: int = 0
    failures: tuple[ShapeFailure, ...] = ()
    server_error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"version": 1, "program": SNAPSHOT, **asdict(self)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SnapshotStatus":
        """Read the output of :meth:`to_json`; raises ``KeyError`` or ``TypeError`` for another document."""
        attempt = fields["attempt"]
        names = ("at_ms", "started_at_ms", "waiting_shapes", "failed_shapes", "server_error")
        return cls(
            attempt=None if attempt is None else AttemptStatus(**attempt),
            tables=tuple(TableStatus(**each) for each in fields["tables"]),
            failures=tuple(ShapeFailure(**each) for each in fields["failures"]),
            **{name: fields[name] for name in names},
        )
