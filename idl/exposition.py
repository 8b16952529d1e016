"""Measures as the text that Prometheus reads. The only module that knows its library.

What a process is made of (memory, processor time, open files) the library adds by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from idl.measures import Kind, Measure, Measures, Spread

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Exposition:
    """What a server measures, as text, whenever somebody asks."""

    def __init__(self, measures: Measures) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Collector(measures))

    def text(self) -> bytes:
        """All values at this moment."""
        return generate_latest(self._registry)


class _Collector:
    """What the library asks; without `describe` it would ask for all values at once."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        return map(_family, self._measures())


def _family(measure: Measure) -> Metric:
    if measure.spread is not None:
        return _histogram(measure, measure.spread)
    kind = CounterMetricFamily if measure.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(measure.name, measure.help, labels=measure.labels)
    for labels, value in measure.values.items():
        family.add_metric(labels, value)
    return family


def _histogram(measure: Measure, spread: Spread) -> Metric:
    family = HistogramMetricFamily(measure.name, measure.help)
    at_most = [(f"{bound:g}", float(count)) for bound, count in spread.at_most]
    family.add_metric((), [*at_most, ("+Inf", float(spread.count))], spread.sum_s)
    return family
