"""The tracking job's metrics: its document as OpenMetrics families."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric, SummaryMetricFamily

from flushtracker.monitoring.metric_families import counter, gauge
from flushtracker.status.job_status import JobStatus, SourceStatus


def job_metrics(status: JobStatus, now_ms: int) -> Iterator[Metric]:
    """Every family, also one that has no sample at the moment; ages are as of ``now_ms``."""
    yield from _ack_metrics(status.sources, now_ms)
    yield from _holder_metrics(status.sources, now_ms)
    yield gauge("ready", "Whether the job's query runs.", status.is_ready)
    yield SummaryMetricFamily(
        "flushtracker_batch_seconds",
        "How long the micro-batches took, since the job's start.",
        count_value=status.batches,
        sum_value=status.batch_ms / 1_000,
    )
    batch_at_s = None if status.batch_at_ms is None else status.batch_at_ms / 1_000
    yield gauge("batch_timestamp_seconds", "When the last micro-batch ended.", batch_at_s)
    yield counter("events", "Events that the job has read since its start.", status.events)
    yield counter("dead_letters", "Malformed flush notifications since the job's start.", status.dead_letters)
    running_s = _age_s(status.batch_running_since_ms, now_ms)
    yield gauge("batch_running_seconds", "For how long the present micro-batch runs; 0 between two.", running_s)
    yield gauge(
        "kafka_records_behind",
        "Records of the topics that the job has not read yet, as of the last finished batch.",
        status.records_behind,
    )
    yield gauge("state_bytes", "Memory that Spark's state uses.", status.state_bytes)


def _ack_metrics(sources: Iterable[SourceStatus], now_ms: int) -> Iterator[Metric]:
    def by_source(name: str, text: str, values: Iterable[int | float | None]) -> Metric:
        samples = [((source.source,), value) for source, value in zip(sources, values, strict=True)]
        return gauge(name, text, labels=("source",), samples=samples)

    yield by_source(
        "ack_lsn",
        "The ack, a byte position in the WAL: all transactions up to it are safe.",
        [s.ack_lsn for s in sources],
    )
    yield by_source(
        "last_seen_lsn",
        "The last commit that the job has seen, a byte position in the WAL.",
        [s.last_seen_lsn for s in sources],
    )
    yield by_source(
        "unacknowledged_bytes",
        "WAL between the ack and the last commit seen.",
        [s.unacknowledged_bytes for s in sources],
    )
    yield by_source(
        "ack_age_seconds",
        "Since when the ack has not moved although something is pending; 0 when nothing is.",
        [_age_s(s.waiting_since_ms, now_ms) for s in sources],
    )
    yield by_source(
        "pending_shapes", "Shapes that have not flushed all that they were sent.", [s.pending_shapes for s in sources]
    )
    yield by_source(
        "stalled_shapes",
        "Pending shapes without progress for the grace period, at most ten of each shape group.",
        [s.stalled_shapes for s in sources],
    )


def _holder_metrics(sources: Iterable[SourceStatus], now_ms: int) -> Iterator[Metric]:
    holders = [((source.source, holder.shape_id), holder) for source in sources for holder in source.holders]
    labels = ("source", "shape")
    yield gauge(
        "shape_held_bytes",
        "WAL from the shape's first pending commit to the last one seen, of the ten shapes that hold the most.",
        labels=labels,
        samples=[(names, holder.held_bytes) for names, holder in holders],
    )
    yield gauge(
        "shape_pending_seconds",
        "Since when the shape is pending without progress, of the ten shapes that hold the most.",
        labels=labels,
        samples=[(names, _age_s(holder.since_ms, now_ms)) for names, holder in holders],
    )


def _age_s(since_ms: int | None, now_ms: int) -> float:
    return 0.0 if since_ms is None else max(now_ms - since_ms, 0) / 1_000
