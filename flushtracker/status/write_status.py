"""``WriteStatus``: what the writers' job reports, the document of its ``/status.json``."""

from typing import Annotated, Final

from flushtracker.status.document import Lsn, Natural, StatusObject, about, age, counter, gauge
from flushtracker.status.query_status import QueryStatus
from flushtracker.status.snapshot_status import SnapshotStatus

MOST_LISTED: Final = 10
"""The maximum number of shapes in a list. There may be a hundred thousand, and a document is read every few seconds."""


class ShapeNote(StatusObject, frozen=True, rename={"shape_id": "shape"}):
    """A shape, and why it is listed."""

    shape_id: Annotated[str, about("the shape's id")]
    reason: Annotated[str, about("what is missing, or why it has ended")]


class SourceShapes(StatusObject, frozen=True):
    """The shapes of a source, as the registry table has them."""

    live: Annotated[Natural, gauge("live_shapes", "live shapes, as the registry table has them")] = 0
    ended_count: Annotated[Natural, gauge("ended_shapes", "shapes that were removed or have ended")] = 0
    ended: Annotated[tuple[ShapeNote, ...], about("the ten that ended last, the last one first", most=MOST_LISTED)] = ()
    without_snapshot_count: Annotated[
        Natural, gauge("shapes_without_snapshot", "live shapes that need a snapshot and have none yet")
    ] = 0
    without_snapshot: Annotated[tuple[str, ...], about("some of them, at most ten, by id", most=MOST_LISTED)] = ()


class WrittenSource(StatusObject, frozen=True):
    """What the writers have written and notified for a source."""

    source: Annotated[str, about("the source")]
    flushed_lsn: Annotated[
        Lsn | None, gauge("flushed_lsn", "the greatest LSN up to which a shape is durable and notified")
    ] = None
    notified_at_ms: Annotated[Natural | None, gauge("notified_timestamp_seconds", "when a shape was last notified")] = (
        None
    )
    commit_at_ms: Annotated[
        Natural | None,
        gauge(
            "commit_timestamp_seconds",
            "when the last transaction that was written committed, by the server's clock, or as its replication origin "
            "has set that",
        ),
    ] = None
    written_after_ms: Annotated[
        Natural | None,
        gauge(
            "written_after_seconds",
            "how long after its commit the last transaction that was written was durable: how far the writers were "
            "behind then",
        ),
    ] = None
    rows: Annotated[Natural, counter("rows", "rows appended to the shape log since the job's start")] = 0
    gap_count: Annotated[
        Natural,
        gauge(
            "gap_shapes",
            "shapes with a gap: nothing is written for them until the missing changes are sent again",
        ),
    ] = 0
    gaps: Annotated[
        tuple[ShapeNote, ...], about("some of them, at most ten, with what is missing", most=MOST_LISTED)
    ] = ()
    shapes: Annotated[
        SourceShapes | None,
        about("the source's shapes, as the registry table has them; `null` before it was read"),
    ] = None
    cut_lsn: Annotated[
        Lsn | None,
        gauge(
            "cut_lsn",
            "with `acks`: the last [cut](shape_log.md#several-shapes-as-of-one-moment) noted since the job's start",
            "with `acks`: the last cut noted since the job's start, up to where the log has all shapes",
        ),
    ] = None
    cut_at_ms: Annotated[Natural | None, gauge("cut_timestamp_seconds", "when that cut was noted")] = None


class UpkeepStatus(StatusObject, frozen=True):
    """Upkeep of the shape log; the sums count from the job's start."""

    done_at_ms: Annotated[
        Natural | None,
        gauge("upkeep_timestamp_seconds", "when upkeep of the shape log last ended without an error"),
    ] = None
    running_since_ms: Annotated[
        Natural | None, age("upkeep_running_seconds", "since when upkeep runs; `null` between two runs")
    ] = None
    failing_since_ms: Annotated[
        Natural | None, age("upkeep_failing_seconds", "since when upkeep fails; `null` if it works")
    ] = None
    error: Annotated[str | None, about("why it failed last; `null` if it works")] = None
    merges: Annotated[Natural, about("merges of files")] = 0
    rewritten_bytes: Annotated[Natural, about("what they have rewritten")] = 0
    deleted_shapes: Annotated[Natural, about("shapes whose logs were deleted")] = 0
    folded_shapes: Annotated[Natural, about("shapes whose history was folded")] = 0
    dropped_rows: Annotated[Natural, about("by how many rows their logs are shorter")] = 0
    vacuumed_files: Annotated[Natural, about("files that were deleted")] = 0


class Failure(StatusObject, frozen=True):
    """A failure after which the job went on."""

    at_ms: Annotated[
        Natural, gauge("failure_timestamp_seconds", "when the job last met a failure after which it went on")
    ]
    text: Annotated[str, about("what has failed")]


class WriteStatus(QueryStatus, frozen=True, tag="write"):
    """What the writers' job says of itself."""

    sources: Annotated[tuple[WrittenSource, ...], about("one object for each source")] = ()
    rows_per_s: Annotated[Natural, about("rows appended per second in the last minute")] = 0
    failure: Annotated[
        Failure | None,
        about(
            "the last failure after which the job went on, such as an unavailable broker; an error that ends the job "
            "is the last line of its log"
        ),
    ] = None
    upkeep: Annotated[UpkeepStatus, about("upkeep of the shape log")] = UpkeepStatus()
    snapshots: Annotated[
        SnapshotStatus | None,
        about(
            "with `snapshot: auto`, what the job itself does for snapshots, as in "
            "[the document of the snapshots' job](#of-the-snapshots-job); otherwise `null`"
        ),
    ] = None
