"""``SnapshotStatus``: what the snapshots' job reports: what it reads now, what is left, and what has failed.

Times are milliseconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from flushtracker.status.json_document import named_fields

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
class SnapshotSource:
    """The shapes of a source that need a snapshot, and those that have got one since the start, of ``rows`` rows."""

    source: str
    shapes_left: int = 0
    shapes_taken: int = 0
    rows: int = 0

    def with_more(self, more: "SnapshotSource") -> "SnapshotSource":
        """The sums of both."""
        left, taken = self.shapes_left + more.shapes_left, self.shapes_taken + more.shapes_taken
        return SnapshotSource(self.source, left, taken, self.rows + more.rows)


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

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {"shape": fields.pop("shape_id"), **fields}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ShapeFailure":
        names = ("source", "shape", "table", "reason", "tries", "since_ms", "retry_at_ms")
        return cls(*(fields[name] for name in names))


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The job at ``at_ms``.

    ``sources`` has the sums of all tables, ``tables`` some of them. ``waiting_shapes`` are in neither: capture has not
    yet said that their starts are visible. ``failures`` lists some of the ``failed_shapes``, those first that are
    retried first. ``server_error``: why the last look at the server or the tables found nothing out, ``None`` if it
    did. ``progress_at_ms`` is when anything was last found out, read or taken, ``None`` before the first look, and
    ``next_look_at_ms`` when the job looks again, ``None`` while it works.
    """

    at_ms: int
    started_at_ms: int
    attempt: AttemptStatus | None = None
    sources: tuple[SnapshotSource, ...] = ()
    tables: tuple[TableStatus, ...] = ()
    waiting_shapes: int = 0
    failed_shapes: int = 0
    failures: tuple[ShapeFailure, ...] = ()
    server_error: str | None = None
    progress_at_ms: int | None = None
    next_look_at_ms: int | None = None

    @property
    def not_ready_because(self) -> str | None:
        """Why the program does not do its work; ``None`` if it is ready."""
        if self.server_error is not None:
            return f"it does not know which shapes need a snapshot: {self.server_error}"
        return "it has not found out yet which shapes need a snapshot" if self.progress_at_ms is None else None

    def stalled_ms(self, at_ms: int) -> int:
        """For how long there has been no progress at ``at_ms``; 0 while the job waits until it looks again."""
        times = (self.started_at_ms, self.progress_at_ms or 0, self.next_look_at_ms or 0)
        return max(at_ms - max(times), 0)

    def to_json(self) -> dict[str, Any]:
        lists = {
            "sources": [asdict(source) for source in self.sources],
            "tables": [asdict(table) for table in self.tables],
            "failures": [failure.to_json() for failure in self.failures],
        }
        return {"version": 1, "program": SNAPSHOT, **asdict(self), **lists}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SnapshotStatus":
        """Read the output of :meth:`to_json`; raises ``KeyError`` or ``TypeError`` for another document."""
        attempt = fields["attempt"]
        read: dict[str, Any] = {
            "attempt": None if attempt is None else AttemptStatus(**named_fields(AttemptStatus, attempt)),
            "sources": tuple(SnapshotSource(**named_fields(SnapshotSource, each)) for each in fields["sources"]),
            "tables": tuple(TableStatus(**named_fields(TableStatus, each)) for each in fields["tables"]),
            "failures": tuple(map(ShapeFailure.from_json, fields["failures"])),
        }
        return cls(**{**named_fields(cls, fields), **read})
