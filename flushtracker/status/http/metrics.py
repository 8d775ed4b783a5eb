"""``/metrics``: a program's document as metrics, in the exposition format that the client accepts.

A field names its metric (:mod:`flushtracker.status.document`); ``_Families`` adds the few that no single field has. A
family with unknown values is present without samples. Every sample gets the label ``program``, and ``source`` and
``slot`` if known.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from flushtracker import __version__
from flushtracker.status.capture_status import CaptureStatus, SlotStatus
from flushtracker.status.current_sources import only_source, slot_of, unretired_sources
from flushtracker.status.document import Document, FieldMetric, StatusObject, described
from flushtracker.status.program_status import ProgramStatus
from flushtracker.status.query_status import QueryStatus
from flushtracker.status.snapshot_status import SnapshotStatus
from flushtracker.status.write_status import WriteStatus

PREFIX: Final = "flushtracker_"
_UNITS: Final = ("bytes", "seconds")

_Objects: TypeAlias = Iterable[tuple[Mapping[str, str], StatusObject | None]]
"""Objects of one kind, with their labels."""


def field_metrics(status: Document, now_ms: int) -> dict[str, Metric]:
    """The families by the names of the metrics, without those of a document inside this one."""
    families: dict[str, Metric] = {}
    _add(families, type(status), [({}, status)], now_ms)
    return families


def _add(families: dict[str, Metric], kind: type[StatusObject], objects: _Objects, now_ms: int) -> None:
    for field in described(kind):
        values = [(labels, None if each is None else getattr(each, field.name)) for labels, each in objects]
        if field.metric is not None:
            family = families.setdefault(field.metric.name, _family(field.metric, is_lsn=field.is_lsn))
            suffix = "_total" if field.metric.kind == "counter" else ""
            for labels, value in values:
                if (sample := field.metric.sample(value, now_ms)) is not None:
                    family.add_sample(f"{family.name}{suffix}", {**labels, **field.metric.labels}, float(sample))
        if field.inner is not None and not issubclass(field.inner, Document):
            _add(families, field.inner, list(_inside(field.inner, values, is_list=field.is_list)), now_ms)


def _family(metric: FieldMetric, *, is_lsn: bool) -> Metric:
    unit = metric.name.rpartition("_")[2]
    has_unit = metric.kind == "gauge" and unit in _UNITS
    text = f"{metric.text[:1].upper()}{metric.text[1:]}{' (a byte position in the WAL)' if is_lsn else ''}."
    return Metric(PREFIX + metric.name, text, metric.kind, unit if has_unit else "")


def _inside(
    inner: type[StatusObject], values: Iterable[tuple[Mapping[str, str], Any]], *, is_list: bool
) -> Iterator[tuple[Mapping[str, str], Any]]:
    """The objects in a field. The first field of each one in a list is a label of its metrics."""
    label = described(inner)[0]
    for labels, value in values:
        if not is_list:
            yield labels, value
            continue
        for each in value or ():
            yield {**labels, label.key: str(getattr(each, label.name))}, each


_WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""The values of ``pg_replication_slots.wal_status``."""


def metrics(status: ProgramStatus, now_ms: int, accept: str = "") -> tuple[str, bytes]:
    """The content type and the text: OpenMetrics if ``accept`` allows it, otherwise the Prometheus text format."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # It asks for a version that is not a number.
        encoder, content_type = choose_encoder("")
    return content_type, encoder(_Families(status, now_ms))


class _Families(Collector):
    """One collector per response, so that nothing is registered globally."""

    def __init__(self, status: ProgramStatus, now_ms: int) -> None:
        self._status = status
        self._source = only_source(status)
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        for family in metric_families(self._status, self._now_ms):
            family.samples = [sample._replace(labels=self._labels(sample.labels)) for sample in family.samples]
            yield family

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels of a sample, with the program, the source and its slot, if known.

        Without them, a sum over the programs of two databases would mix the two.
        """
        source = labels.get("source", self._source)
        found = {"program": self._status.program, "source": source, "slot": source and slot_of(source), **labels}
        return {name: value for name, value in found.items() if value is not None}


def metric_families(status: ProgramStatus, now_ms: int) -> Iterator[Metric]:
    """The families of a document, with ages as of ``now_ms``; samples have only their own labels."""
    families = _of_fields(status, now_ms)
    if isinstance(status, QueryStatus):
        text = "How long the micro-batches took since the job's start, and how many have ended: `_sum` and `_count`."
        yield SummaryMetricFamily(f"{PREFIX}batch_seconds", text, status.batches, status.batch_ms / 1_000)
    snapshots = status.snapshots if isinstance(status, WriteStatus) else status
    if isinstance(snapshots, SnapshotStatus):
        is_known = snapshots.not_ready_because is None
        yield _gauge("snapshot_ready", "Whether it is known which shapes need a snapshot.", is_known)
        text = "For how long nothing was found out, read or taken; 0 while the job waits until it looks again."
        yield _gauge("snapshot_stalled_seconds", text, snapshots.stalled_ms(now_ms) / 1_000, "seconds")
        families = _of_fields(snapshots, now_ms) | families
    if isinstance(status, CaptureStatus):
        yield _wal_status(status.slot)
    yield from families.values()
    is_ready = status.not_ready_because is None
    yield _gauge("ready", "Whether the program does its work: 1 if `/readyz` answers 200.", is_ready)
    release = GaugeMetricFamily(f"{PREFIX}build_info", "Always 1; the label says which release it is.")
    release.add_sample(release.name, {"version": __version__}, 1)
    yield release


def _of_fields(status: ProgramStatus, now_ms: int) -> dict[str, Metric]:
    """The metrics of fields, without retired sources: these would keep an alert firing that no one can clear."""
    families, known = field_metrics(status, now_ms), {None, *unretired_sources(status)}
    for name, family in families.items():
        if name != "source_retired":
            family.samples = [sample for sample in family.samples if sample.labels.get("source") in known]
    return families


def _gauge(name: str, text: str, value: float, unit: str = "") -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value, unit=unit)


def _wal_status(slot: SlotStatus | None) -> Metric:
    text = "The slot's `wal_status` in `pg_replication_slots`: 1 for the one that it has, 0 for the others."
    family = GaugeMetricFamily(f"{PREFIX}slot_wal_status", text, labels=("wal_status",))
    if slot is not None:  # PostgreSQL may add a status.
        for name in sorted({*_WAL_STATUSES, *filter(None, [slot.wal_status])}):
            family.add_metric((name,), name == slot.wal_status)
    return family
