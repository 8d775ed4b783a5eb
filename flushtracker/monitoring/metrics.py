"""``/metrics``: each field of a program's document as a metric, in the exposition format that the client accepts.

To add a metric, add its family to the function of the program. A family whose value is unknown has no sample, but is
always there. Every sample gets the labels ``program``, and ``source`` and ``slot`` where there is one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from flushtracker import __version__
from flushtracker.monitoring.families import PREFIX, age_s, counter, gauge, seconds
from flushtracker.monitoring.field_metrics import field_metrics
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.current_sources import current_sources, only_source, slot_of
from flushtracker.status.job_status import JobStatus, SourceStatus
from flushtracker.status.program_status import ProgramStatus, program_of
from flushtracker.status.serve_status import ServeStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus

_WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""The values of ``pg_replication_slots.wal_status``."""


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
        self._source = only_source(status)
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        for family in metric_families(self._status, self._now_ms):
            family.samples = [sample._replace(labels=self._labels(sample.labels)) for sample in family.samples]
            yield family

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels of a sample, with the program, and with the source and its slot where there is one.

        Without them, a sum over the programs of two databases would mix the two.
        """
        source = labels.get("source", self._source)
        found = {"program": program_of(self._status), "source": source, "slot": source and slot_of(source), **labels}
        return {name: value for name, value in found.items() if value is not None}


def metric_families(status: ProgramStatus, now_ms: int) -> Iterator[Metric]:
    """The families of a document, with ages as of ``now_ms``; their samples have only the labels of their own."""
    families: dict[str, Metric] = {}
    if isinstance(status, JobStatus | WriteStatus):
        yield from _batch_metrics(status, now_ms)
    snapshots = status.snapshots if isinstance(status, WriteStatus) else status
    if isinstance(snapshots, SnapshotStatus):
        yield from _snapshot_metrics(snapshots, now_ms)
        families |= _of_fields(snapshots, now_ms)
    if isinstance(status, JobStatus):
        yield from _job_metrics(status, now_ms)
        yield gauge("start_timestamp_seconds", "When the program started.", seconds(status.started_at_ms))
    else:
        families |= _of_fields(status, now_ms)
    if isinstance(status, CaptureStatus):
        yield _wal_status(status.slot)
    yield from families.values()
    yield gauge(
        "ready", "Whether the program does its work: 1 if `/readyz` answers 200.", status.not_ready_because is None
    )
    version = [((__version__,), 1)]
    yield gauge("build_info", "Always 1; the label says which release it is.", labels=("version",), samples=version)


def _of_fields(status: WriteStatus | SnapshotStatus | ServeStatus | CaptureStatus, now_ms: int) -> dict[str, Metric]:
    """Without sources whose place another one has taken: they would keep an alert firing that nobody can clear."""
    families, known = field_metrics(status, now_ms), {None, *current_sources(status)}
    for family in families.values():
        family.samples = [sample for sample in family.samples if sample.labels.get("source") in known]
    return families


def _snapshot_metrics(status: SnapshotStatus, now_ms: int) -> Iterator[Metric]:
    is_ready = status.not_ready_because is None
    yield gauge("snapshot_ready", "Whether it is known which shapes need a snapshot.", is_ready)
    text = "For how long nothing was found out, read or taken; 0 while the job waits until it looks again."
    yield gauge("snapshot_stalled_seconds", text, status.stalled_ms(now_ms) / 1_000)


def _batch_metrics(status: JobStatus | WriteStatus, now_ms: int) -> Iterator[Metric]:
    """Metrics of a job with a query; ages are as of ``now_ms``."""
    yield SummaryMetricFamily(
        f"{PREFIX}batch_seconds",
        "How long the micro-batches took since the job's start, and how many have ended: `_sum` and `_count`.",
        count_value=status.batches,
        sum_value=status.batch_ms / 1_000,
    )
    if isinstance(status, WriteStatus):
        return
    yield gauge("batch_timestamp_seconds", "When the last micro-batch ended.", seconds(status.batch_at_ms))
    running_s = age_s(status.batch_running_since_ms, now_ms)
    yield gauge("batch_running_seconds", "For how long the present micro-batch has run; 0 between two.", running_s)
    yield gauge(
        "kafka_records_behind",
        "Records of the topics that the job has not read yet, as of the last finished batch.",
        status.records_behind,
    )
    yield gauge("state_bytes", "Memory that Spark's state uses.", status.state_bytes)


def _job_metrics(status: JobStatus, now_ms: int) -> Iterator[Metric]:
    """What the tracking job has besides; ages are as of ``now_ms``."""
    # A retired source would stay pending for good, and keep an alert firing that nobody can clear.
    current = [source for source in status.sources if source.retired_by is None]
    yield from _ack_metrics(current, now_ms)
    yield from _holder_metrics(current, now_ms)
    yield gauge(
        "source_retired",
        "Whether another source has taken the place of this one; then it has no other metrics.",
        labels=("source",),
        samples=[((source.source,), source.retired_by is not None) for source in status.sources],
    )
    yield gauge(
        "source_set_aside",
        "Whether fragments of the source are missing, so that it gets no further ack.",
        labels=("source",),
        samples=[((source.source,), source.gap is not None) for source in current],
    )
    yield counter(
        "events",
        "Events that the job has read since its start.",
        labels=("source",),
        samples=[((source.source,), source.events) for source in current],
    )
    yield counter(
        "dead_letters",
        "Refused flush notifications since the job's start: malformed, or not of the shape's writer.",
        status.dead_letters,
    )


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
        "For how long the ack has not moved although something is pending; 0 when nothing is.",
        [age_s(s.waiting_since_ms, now_ms) for s in sources],
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
        "For how long the shape has been pending without progress, of the ten shapes that hold the most.",
        labels=labels,
        samples=[(names, age_s(holder.since_ms, now_ms)) for names, holder in holders],
    )


def _wal_status(slot: SlotStatus | None) -> Metric:
    known = _WAL_STATUSES if slot is None or slot.wal_status is None else {*_WAL_STATUSES, slot.wal_status}
    return gauge(
        "slot_wal_status",
        "The slot's `wal_status` in `pg_replication_slots`: 1 for the one that it has, 0 for the others.",
        labels=("wal_status",),
        samples=[((name,), None if slot is None else name == slot.wal_status) for name in sorted(known)],
    )
