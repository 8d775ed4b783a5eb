"""Families of metrics: gauges and counters, whose unknown values have no sample."""

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

PREFIX: Final = "flushtracker_"
_UNITS: Final = ("bytes", "seconds")

Value = int | float | None
Samples = Iterable[tuple[Sequence[str], Value]]


def gauge(name: str, text: str, value: Value = None, *, labels: Sequence[str] = (), samples: Samples = ()) -> Metric:
    """A gauge with one ``value``, or with ``labels`` and a sample for each of their values."""
    unit = name.rpartition("_")[2]
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels, unit=unit if unit in _UNITS else "")
    return _filled(family, value, labels, samples)


def counter(name: str, text: str, value: int = 0, *, labels: Sequence[str] = (), samples: Samples = ()) -> Metric:
    """A sum since the program's start; its sample is called ``<name>_total``."""
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=labels), value, labels, samples)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, value: Value, labels: Sequence[str], samples: Samples
) -> Metric:
    for values, sample in samples if labels else [((), value)]:
        if sample is not None:
            family.add_metric(values, float(sample))
    return family


def seconds(at_ms: int | None) -> float | None:
    """A time of a document, in seconds."""
    return None if at_ms is None else at_ms / 1_000


def age_s(since_ms: int | None, now_ms: int) -> float:
    """For how long something lasts; 0 if it does not."""
    return 0.0 if since_ms is None else max(now_ms - since_ms, 0) / 1_000
