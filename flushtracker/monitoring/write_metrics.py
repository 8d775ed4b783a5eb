"""The metrics of the writers' job. Ages are as of ``now_ms``."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from flushtracker.monitoring.families import age_s, counter, gauge, seconds
from flushtracker.status.current_sources import current
from flushtracker.status.write_status import SourceShapes, UpkeepStatus, WriteStatus, WrittenSource

_BY_SOURCE = ("source",)


def write_metrics(status: WriteStatus, now_ms: int) -> Iterator[Metric]:
    """What the job has besides its batches. A retired source would keep an alert firing that nobody can clear."""
    names = current(source.source for source in status.sources)
    sources = [source for source in status.sources if source.source in names]
    yield from _source_metrics(sources)
    yield from _shape_metrics(sources)
    yield from _upkeep_metrics(status.upkeep, now_ms)
    failed_at_s = None if status.failure is None else seconds(status.failure.at_ms)
    yield gauge("failure_timestamp_seconds", "When the job last met a failure after which it went on.", failed_at_s)


def _source_metrics(sources: Sequence[WrittenSource]) -> Iterator[Metric]:
    yield gauge(
        "flushed_lsn",
        "The greatest LSN up to which a shape is durable and notified, a byte position in the WAL.",
        labels=_BY_SOURCE,
        samples=[((s.source,), s.flushed_lsn) for s in sources],
    )
    yield gauge(
        "notified_timestamp_seconds",
        "When a shape was last notified.",
        labels=_BY_SOURCE,
        samples=[((s.source,), seconds(s.notified_at_ms)) for s in sources],
    )
    yield gauge(
        "commit_timestamp_seconds",
        "When the last transaction that was written committed, by the server's clock.",
        labels=_BY_SOURCE,
        samples=[((s.source,), seconds(s.commit_at_ms)) for s in sources],
    )
    yield gauge(
        "written_after_seconds",
        "How long after its commit the last transaction that was written was durable.",
        labels=_BY_SOURCE,
        samples=[((s.source,), seconds(s.written_after_ms)) for s in sources],
    )
    yield gauge(
        "cut_lsn",
        "The last cut noted since the job's start: up to where the log has all shapes, a byte position in the WAL.",
        labels=_BY_SOURCE,
        samples=[((s.source,), s.cut_lsn) for s in sources],
    )
    yield gauge(
        "cut_timestamp_seconds",
        "When that cut was noted.",
        labels=_BY_SOURCE,
        samples=[((s.source,), seconds(s.cut_at_ms)) for s in sources],
    )
    rows = [((s.source,), s.rows) for s in sources]
    yield counter("rows", "Rows appended to the shape log since the job's start.", labels=_BY_SOURCE, samples=rows)
    yield gauge(
        "gap_shapes",
        "Shapes of which changes are missing, and of which nothing is written until they are sent again.",
        labels=_BY_SOURCE,
        samples=[((s.source,), s.gap_count) for s in sources],
    )


def _shape_metrics(sources: Sequence[WrittenSource]) -> Iterator[Metric]:
    known: list[tuple[tuple[str], SourceShapes]] = [((s.source,), s.shapes) for s in sources if s.shapes is not None]
    live = [(labels, shapes.live) for labels, shapes in known]
    yield gauge("live_shapes", "Shapes that the registry table has as live.", labels=_BY_SOURCE, samples=live)
    yield gauge(
        "ended_shapes",
        "Shapes that were removed or have ended.",
        labels=_BY_SOURCE,
        samples=[(labels, shapes.ended_count) for labels, shapes in known],
    )
    yield gauge(
        "shapes_without_snapshot",
        "Live shapes that need a snapshot and have none yet.",
        labels=_BY_SOURCE,
        samples=[(labels, shapes.without_snapshot_count) for labels, shapes in known],
    )


def _upkeep_metrics(upkeep: UpkeepStatus, now_ms: int) -> Iterator[Metric]:
    done_at_s = seconds(upkeep.done_at_ms)
    yield gauge("upkeep_timestamp_seconds", "When upkeep of the shape log last ended without an error.", done_at_s)
    failing_s = age_s(upkeep.failing_since_ms, now_ms)
    yield gauge("upkeep_failing_seconds", "For how long upkeep of the shape log has failed; 0 if it works.", failing_s)
    running_s = age_s(upkeep.running_since_ms, now_ms)
    yield gauge("upkeep_running_seconds", "For how long upkeep has run; 0 between two runs.", running_s)
