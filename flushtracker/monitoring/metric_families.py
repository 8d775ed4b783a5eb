"""Metric families of one program: the prefix, the unit from the name, and no sample where a value is not known."""

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Value = int | float | None
_PREFIX: Final = "flushtracker_"
_UNITS: Final = ("bytes", "seconds")


def gauge(
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


def counter(
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
