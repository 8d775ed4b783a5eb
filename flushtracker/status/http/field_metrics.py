"""The metrics that the fields of a document name; a family whose values are unknown has no sample, but is there."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from prometheus_client.core import Metric

from flushtracker.status.document import Document, FieldMetric, StatusObject, described

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
