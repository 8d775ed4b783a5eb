"""``/metrics``: each field of a program's document as a metric, in the exposition format that the client accepts.

To add a metric, add its family to :func:`_job_metrics` or :func:`_capture_metrics`. A family whose value is unknown has
no sample, but is always there.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from flushtracker import __version__
from flushtracker.status.capture_status import CAPTURE, CaptureStatus, SlotStatus
from flushtracker.status.job_status import TRACK, JobStatus, SourceStatus
from flushtracker.status.program_status import ProgramStatus

_PREFIX: Final = "flushtracker_"
_UNITS: Final = ("bytes", "seconds")
_WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""The values of ``pg_replication_slots.wal_status``."""

Value = int | float | None


def metrics(status: ProgramStatus, now_ms: int, accept: str = "") -> tuple[str, bytes]:
    """The content type and the text: OpenMetrics if ``accept`` allows it, otherwise Prometheus' own format."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # It asks for a version that is not a number.
        encoder, content_type = choose_encoder("")
    return content_type, encoder(_Families(status, now_ms))


class _Families(Collector):
    """One collector for each response, so that nothing is registered for the whole process."""

    def __init__(self, status: ProgramStatus, now_ms: int) -> None:
        self._status = status
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        status = self._status
        if isinstance(status, JobStatus):
            program = TRACK
            yield from _job_metrics(status, self._now_ms)
        else:
            program = CAPTURE
            yield from _capture_metrics(status)
        yield _gauge("start_timestamp_seconds", "When the program started.", status.started_at_ms / 1_000)
        yield _gauge(
            "build_info",
            "Always 1; the labels say which program this is, and its version.",
            labels=("program", "version"),
            samples=[((program, __version__), 1)],
        )


def _job_metrics(status: JobStatus, now_ms: int) -> Iterator[Metric]:
    """The tracking job's metrics; ages are as of ``now_ms``."""
    # A retired source would stay pending for good, and keep an alert firing that nobody can clear.
    current = [source for source in status.sources if source.retired_by is None]
    yield from _ack_metrics(current, now_ms)
    yield from _holder_metrics(current, now_ms)
    yield _gauge(
        "source_retired",
        "Whether another source has taken the place of this one; then it has no other metrics.",
        labels=("source",),
        samples=[((source.source,), source.retired_by is not None) for source in status.sources],
    )
    yield _gauge("ready", "Whether the job's query runs.", status.is_ready)
    yield SummaryMetricFamily(
        "flushtracker_batch_seconds",
        "How long the micro-batches took, since the job's start.",
        count_value=status.batches,
        sum_value=status.batch_ms / 1_000,
    )
    batch_at_s = None if status.batch_at_ms is None else status.batch_at_ms / 1_000
    yield _gauge("batch_timestamp_seconds", "When the last micro-batch ended.", batch_at_s)
    yield _counter("events", "Events that the job has read since its start.", status.events)
    yield _counter("dead_letters", "Malformed flush notifications since the job's start.", status.dead_letters)
    running_s = _age_s(status.batch_running_since_ms, now_ms)
    yield _gauge("batch_running_seconds", "For how long the present micro-batch has run; 0 between two.", running_s)
    yield _gauge(
        "kafka_records_behind",
        "Records of the topics that the job has not read yet, as of the last finished batch.",
        status.records_behind,
    )
    yield _gauge("state_bytes", "Memory that Spark's state uses.", status.state_bytes)


def _ack_metrics(sources: Iterable[SourceStatus], now_ms: int) -> Iterator[Metric]:
    def by_source(name: str, text: str, values: Iterable[int | float | None]) -> Metric:
        samples = [((source.source,), value) for source, value in zip(sources, values, strict=True)]
        return _gauge(name, text, labels=("source",), samples=samples)

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
        "For how long the ack has not moved although something is pending; 0 when nothing is.",
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
    yield _gauge(
        "shape_held_bytes",
        "WAL from the shape's first pending commit to the last one seen, of the ten shapes that hold the most.",
        labels=labels,
        samples=[(names, holder.held_bytes) for names, holder in holders],
    )
    yield _gauge(
        "shape_pending_seconds",
        "For how long the shape has been pending without progress, of the ten shapes that hold the most.",
        labels=labels,
        samples=[(names, _age_s(holder.since_ms, now_ms)) for names, holder in holders],
    )


def _age_s(since_ms: int | None, now_ms: int) -> float:
    return 0.0 if since_ms is None else max(now_ms - since_ms, 0) / 1_000


def _capture_metrics(status: CaptureStatus) -> Iterator[Metric]:
    """Capture's metrics."""
    yield from _slot_metrics(status.slot)
    is_ready = status.is_connected and status.slot is not None
    yield _gauge("ready", "Whether capture is connected and has read its slot.", is_ready)
    yield _gauge("connected", "Whether capture is connected for replication and knows its shapes.", status.is_connected)
    yield _gauge("received_lsn", "How far capture has received the WAL, a byte position.", status.received_lsn)
    yield _gauge(
        "published_lsn", "How far Kafka has confirmed what capture published, a byte position.", status.published_lsn
    )
    yield _gauge("confirmed_lsn", "How far capture has confirmed the slot, a byte position.", status.confirmed_lsn)
    read_at_s = None if status.acks_read_at_ms is None else status.acks_read_at_ms / 1_000
    yield _gauge("ack_read_timestamp_seconds", "When the ack table was last read without an error.", read_at_s)
    yield _gauge("shapes", "Shapes to which capture routes changes.", status.shapes)
    waiting = sum(each.count for each in status.waiting)
    yield _gauge("shapes_waiting", "Shapes that are defined, but not added yet.", waiting)
    yield _gauge("shapes_refused", "Entries of the shapes file that capture has not taken.", status.shapes_refused)
    yield _counter(
        "changes",
        "Changes since capture's start, by whether they concerned a shape.",
        labels=("matched",),
        samples=[(("true",), status.changes_matched), (("false",), status.changes_unmatched)],
    )
    yield _gauge("publish_queue_bytes", "Events that Kafka has not confirmed yet.", status.publish_queue_bytes)
    yield _counter("reconnects", "Connections to PostgreSQL after the first one.", status.reconnects)
    # The document has older ones, too. If they were counted, they would look new to an alert after each start.
    evictions = sum(eviction.at_ms >= status.started_at_ms for eviction in status.evictions)
    yield _counter("evictions", "Shapes removed by the policy of evict since capture's start.", evictions)


def _slot_metrics(slot: SlotStatus | None) -> Iterator[Metric]:
    yield _gauge("slot_active", "Whether a connection uses the slot.", None if slot is None else slot.is_active)
    yield _gauge("slot_retained_bytes", "WAL that the slot keeps.", None if slot is None else slot.retained_bytes)
    yield _gauge(
        "slot_safe_wal_bytes",
        "WAL that may still be written before the slot is lost; absent where the server sets no limit.",
        None if slot is None else slot.safe_wal_bytes,
    )
    known = _WAL_STATUSES if slot is None or slot.wal_status is None else {*_WAL_STATUSES, slot.wal_status}
    yield _gauge(
        "slot_wal_status",
        "The slot's wal_status in pg_replication_slots: 1 for the one that it has.",
        labels=("wal_status",),
        samples=[((name,), None if slot is None else name == slot.wal_status) for name in sorted(known)],
    )
    yield _gauge(
        "written_lsn",
        "The end of the WAL when the slot was read, a byte position.",
        None if slot is None else slot.written_lsn,
    )
    read_at_s = None if slot is None else slot.at_ms / 1_000
    yield _gauge("slot_read_timestamp_seconds", "When the slot was read.", read_at_s)


def _gauge(
    name: str,
    text: str,
    value: Value = None,
    *,
    labels: Sequence[str] = (),
    samples: Iterable[tuple[Sequence[str], Value]] = (),
) -> Metric:
    """A gauge with one ``value``, or with ``labels`` and a sample for each of their values."""
    unit = name.rpartition("_")[2]
    family = GaugeMetricFamily(_PREFIX + name, text, labels=labels, unit=unit if unit in _UNITS else "")
    for values, sample in samples if labels else [((), value)]:
        if sample is not None:
            family.add_metric(values, float(sample))
    return family


def _counter(
    name: str,
    text: str,
    value: int = 0,
    *,
    labels: Sequence[str] = (),
    samples: Iterable[tuple[Sequence[str], int]] = (),
) -> Metric:
    """A sum since the program's start; its sample is called ``<name>_total``."""
    family = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for values, sample in samples if labels else [((), value)]:
        family.add_metric(values, float(sample))
    return family
