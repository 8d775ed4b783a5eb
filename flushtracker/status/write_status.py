"""``WriteStatus``: what the writers' job reports, the document of its ``/status.json``.

LSNs are text in JSON and numbers here, ``None`` if there is none yet. Times are milliseconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from msgspec import convert

from flushtracker.status.document import lsn_from_json as hook
from flushtracker.status.json_document import lsn_from_json, lsn_to_json, named_fields
from flushtracker.status.snapshot_status import SnapshotStatus

WRITE: Final = "write"
"""The ``program`` of the document."""

MOST_LISTED: Final = 10
"""The most shapes in one list. There may be a hundred thousand, and a document is read every few seconds."""


@dataclass(frozen=True, slots=True)
class ShapeNote:
    """A shape, and why it is listed."""

    shape_id: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"shape": self.shape_id, "reason": self.reason}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "ShapeNote":
        return cls(fields["shape"], fields["reason"])


@dataclass(frozen=True, slots=True)
class SourceShapes:
    """The shapes of a source, as the registry table has them; lists have the first, or last, ten.

    ``ended`` has those that ended last, the last one first; ``without_snapshot`` those that have none and need one.
    """

    live: int = 0
    ended_count: int = 0
    ended: tuple[ShapeNote, ...] = ()
    without_snapshot_count: int = 0
    without_snapshot: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "live": self.live,
            "ended_count": self.ended_count,
            "ended": [note.to_json() for note in self.ended],
            "without_snapshot_count": self.without_snapshot_count,
            "without_snapshot": list(self.without_snapshot),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SourceShapes":
        return cls(
            fields["live"],
            fields["ended_count"],
            tuple(map(ShapeNote.from_json, fields["ended"])),
            fields["without_snapshot_count"],
            tuple(fields["without_snapshot"]),
        )


@dataclass(frozen=True, slots=True)
class WrittenSource:
    """One source. ``flushed_lsn`` is the greatest LSN up to which a shape was notified, ``notified_at_ms`` when.

    ``commit_at_ms`` is when the last transaction that was written committed, by the server's clock, or as its
    replication origin has set that, and ``written_after_ms`` how long after that it was durable. ``rows`` count from
    the job's start. ``gaps`` are shapes of which changes are missing, at most ten of ``gap_count``. ``shapes`` is
    ``None`` before the registry table was read. ``cut_lsn`` is the last cut that the job has noted since its start,
    ``cut_at_ms`` when.
    """

    source: str
    flushed_lsn: int | None = None
    notified_at_ms: int | None = None
    commit_at_ms: int | None = None
    written_after_ms: int | None = None
    rows: int = 0
    gap_count: int = 0
    gaps: tuple[ShapeNote, ...] = ()
    shapes: SourceShapes | None = None
    cut_lsn: int | None = None
    cut_at_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "flushed_lsn": lsn_to_json(self.flushed_lsn),
            "notified_at_ms": self.notified_at_ms,
            "commit_at_ms": self.commit_at_ms,
            "written_after_ms": self.written_after_ms,
            "rows": self.rows,
            "gap_count": self.gap_count,
            "gaps": [note.to_json() for note in self.gaps],
            "shapes": None if self.shapes is None else self.shapes.to_json(),
            "cut_lsn": lsn_to_json(self.cut_lsn),
            "cut_at_ms": self.cut_at_ms,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "WrittenSource":
        return cls(
            fields["source"],
            lsn_from_json(fields["flushed_lsn"]),
            fields["notified_at_ms"],
            fields["commit_at_ms"],
            fields["written_after_ms"],
            fields["rows"],
            fields["gap_count"],
            tuple(map(ShapeNote.from_json, fields["gaps"])),
            None if fields["shapes"] is None else SourceShapes.from_json(fields["shapes"]),
            lsn_from_json(fields["cut_lsn"]),
            fields["cut_at_ms"],
        )


@dataclass(frozen=True, slots=True)
class UpkeepStatus:
    """Upkeep of the shape log; the sums count from the job's start.

    ``done_at_ms`` is when it last ended without an error, ``failing_since_ms`` since when it has not, with the last
    ``error``. ``running_since_ms`` is ``None`` between two runs.
    """

    done_at_ms: int | None = None
    running_since_ms: int | None = None
    failing_since_ms: int | None = None
    error: str | None = None
    merges: int = 0
    rewritten_bytes: int = 0
    deleted_shapes: int = 0
    folded_shapes: int = 0
    dropped_rows: int = 0
    vacuumed_files: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure that the job has met and retried, or retries."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """The writers' job at ``at_ms``. The fields about batches and the query are those of ``JobStatus``.

    ``rows_per_s`` is of the last minute. ``snapshots`` is ``None`` if the job itself takes none.
    """

    at_ms: int
    started_at_ms: int
    is_ready: bool
    sources: tuple[WrittenSource, ...] = ()
    batch_id: int | None = None
    batch_at_ms: int | None = None
    batch_running_since_ms: int | None = None
    batches: int = 0
    batch_ms: int = 0
    rows_per_s: int = 0
    records_behind: int | None = None
    state_bytes: int | None = None
    failure: Failure | None = None
    upkeep: UpkeepStatus = UpkeepStatus()
    snapshots: SnapshotStatus | None = None

    @property
    def not_ready_because(self) -> str | None:
        """Why the program does not do its work yet; ``None`` if it is ready."""
        return None if self.is_ready else "the query is starting: it reads its state or runs its first batch"

    def to_json(self) -> dict[str, Any]:
        nested = {
            "sources": [source.to_json() for source in self.sources],
            "snapshots": None if self.snapshots is None else self.snapshots.to_json(),
        }
        return {"version": 1, "program": WRITE, **asdict(replace(self, snapshots=None)), **nested}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "WriteStatus":
        """Read the output of :meth:`to_json`; raises ``KeyError`` or ``TypeError`` for another document."""
        failure, snapshots = fields["failure"], fields["snapshots"]
        read: dict[str, Any] = {
            "sources": tuple(map(WrittenSource.from_json, fields["sources"])),
            "failure": None if failure is None else Failure(**named_fields(Failure, failure)),
            "upkeep": UpkeepStatus(**named_fields(UpkeepStatus, fields["upkeep"])),
            "snapshots": convert(snapshots, SnapshotStatus | None, dec_hook=hook),
        }
        return cls(**{**named_fields(cls, fields), **read})
