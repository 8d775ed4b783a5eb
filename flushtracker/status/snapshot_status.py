"""``SnapshotStatus``: what the snapshots' job reports: what it reads now, what is left, and what has failed."""

from typing import Annotated, Final

from flushtracker.status.document import Document, Natural, StatusObject, about, age, counter, gauge

MOST_SHAPES: Final = 100
"""The maximum number of failures, and of tables, that are listed; a hundred thousand shapes may have as many."""


class AttemptStatus(StatusObject, frozen=True):
    """The attempt that runs: one MVCC snapshot of a table, read in ranges for some of its shapes."""

    source: Annotated[str, about("the source")]
    table: Annotated[str, about("the table")]
    shapes: Annotated[Natural, about("shapes that it reads")]
    started_at_ms: Annotated[
        Natural,
        age(
            "snapshot_attempt_seconds",
            "since when it runs",
            "for how long the current attempt has run; 0 if there is none",
        ),
    ]
    ranges: Annotated[Natural, about("parts of the table to read")]
    ranges_done: Annotated[Natural, about("how many were read")] = 0
    rows: Annotated[Natural, about("rows that were read, of all shapes")] = 0
    rows_per_s: Annotated[Natural, about("rows per second")] = 0
    seconds_left: Annotated[
        Natural | None, about("how long it takes at this rate; `null` before the first part is read")
    ] = None


class SnapshotSource(StatusObject, frozen=True):
    """The shapes of a source that need a snapshot, and those that have got one since the start."""

    source: Annotated[str, about("the source")]
    shapes_left: Annotated[Natural, gauge("snapshot_shapes_left", "shapes that need a snapshot now")] = 0
    shapes_taken: Annotated[
        Natural, counter("snapshot_shapes_taken", "shapes that have got a snapshot since the start")
    ] = 0
    rows: Annotated[Natural, counter("snapshot_rows", "rows of those snapshots")] = 0

    def with_more(self, more: "SnapshotSource") -> "SnapshotSource":
        """The sums of both."""
        left, taken = self.shapes_left + more.shapes_left, self.shapes_taken + more.shapes_taken
        return SnapshotSource(self.source, left, taken, self.rows + more.rows)


class TableStatus(StatusObject, frozen=True):
    """A table with shapes that need a snapshot, or have got one since the start."""

    source: Annotated[str, about("the source")]
    table: Annotated[str, about("the table")]
    shapes_left: Annotated[Natural, about("shapes that need a snapshot now")]
    shapes_taken: Annotated[Natural, about("shapes that have got one since the start")] = 0
    rows: Annotated[Natural, about("rows of those snapshots")] = 0


class ShapeFailure(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """A shape whose attempts have failed."""

    source: Annotated[str, about("the source")]
    shape_id: Annotated[str, about("the shape's id")]
    table: Annotated[str, about("the table")]
    reason: Annotated[str, about("why")]
    tries: Annotated[Natural, about("failures in a row")]
    since_ms: Annotated[Natural, about("when the first of them was")]
    retry_at_ms: Annotated[Natural, about("when it is tried again")]


class SnapshotStatus(Document, frozen=True, tag="snapshot"):
    """What the snapshots' job says of itself, or the writers' job that takes snapshots."""

    attempt: Annotated[AttemptStatus | None, about("the attempt that runs; `null` if there is none")] = None
    sources: Annotated[
        tuple[SnapshotSource, ...],
        about("one object for each source with shapes that need a snapshot, or have got one: the sums of all tables"),
    ] = ()
    tables: Annotated[
        tuple[TableStatus, ...],
        about("tables with such shapes, at most 100, those with most left first", most=MOST_SHAPES),
    ] = ()
    waiting_shapes: Annotated[
        Natural,
        gauge(
            "snapshot_shapes_waiting",
            "shapes that wait until capture has said that all transactions before them are visible; "
            "`shapes_left` does not count them",
        ),
    ] = 0
    failed_shapes: Annotated[
        Natural, gauge("snapshot_shapes_failed", "shapes whose last attempt has failed; they are tried again")
    ] = 0
    failures: Annotated[
        tuple[ShapeFailure, ...],
        about("some of them, at most 100, those that are tried again first, first", most=MOST_SHAPES),
    ] = ()
    server_error: Annotated[
        str | None, about("why the last look at the server or the tables found nothing out; `null` if it did")
    ] = None
    progress_at_ms: Annotated[
        Natural | None, about("when anything was last found out, read or taken; `null` before the first look")
    ] = None
    next_look_at_ms: Annotated[Natural | None, about("when the job looks again; `null` while it works")] = None

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
