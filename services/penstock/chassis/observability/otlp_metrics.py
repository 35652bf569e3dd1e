"""Export of the process's metrics over OTLP: the registry's families as messages of OpenTelemetry."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any

import structlog
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from penstock.chassis.observability import semconv
from penstock.chassis.observability.metrics import series_of
from penstock.chassis.observability.series import Kind, Series

log = structlog.get_logger()

DEFAULT_INTERVAL_MS = 60_000  # as the SDK's
INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"  # ms, as the SDK's
INTEGER_ATTRIBUTES = {semconv.HTTP_RESPONSE_STATUS_CODE}
THREAD_NAME = "otlp-metrics"


class OtlpMetrics:
    """Exports all series of `registry` at an interval, in a thread, and once more at the shutdown."""

    def __init__(
        self, registry: CollectorRegistry, exporter: MetricExporter, resource: Resource, scope: InstrumentationScope
    ) -> None:
        self._registry = registry
        self._exporter = exporter
        self._resource = resource
        self._scope = scope
        self._started_ns = time.time_ns()
        self._is_shut_down = threading.Event()
        self._interval_s = int(os.environ.get(INTERVAL_VARIABLE, DEFAULT_INTERVAL_MS)) / 1_000
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def shutdown(self, timeout_s: float) -> None:
        self._is_shut_down.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown(timeout_s * 1_000)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_shut_down.wait(self._interval_s)
            try:
                self._export()
            except Exception:  # the next interval may succeed
                log.exception("metrics_not_exported")

    def _export(self) -> None:
        if metrics := metrics_of(self._registry.collect(), self._started_ns, time.time_ns()):
            scoped = [ScopeMetrics(self._scope, metrics, "")]
            self._exporter.export(MetricsData([ResourceMetrics(self._resource, scoped, "")]))


def metrics_of(families: Iterable[Family], started_ns: int, now_ns: int) -> list[Metric]:
    """Return the families that have a series and samples, with OpenTelemetry's names. Times are Unix ns."""
    found = ((family, series_of(family.name)) for family in families)
    return [
        Metric(series.name, series.meaning, series.unit, _data_of(series, family.samples, started_ns, now_ns))
        for family, series in found
        if series and family.samples
    ]


def _data_of(series: Series, samples: list[Sample], started_ns: int, now_ns: int) -> Sum | Gauge | Histogram:
    names = dict(zip(series.prometheus_labels, series.labels, strict=True))
    if series.kind is Kind.HISTOGRAM:
        points = list(_histogram_points(names, samples, started_ns, now_ns))
        return Histogram(points, AggregationTemporality.CUMULATIVE)
    numbers = [NumberDataPoint(_attributes(names, each), started_ns, now_ns, _number(each.value)) for each in samples]
    if series.kind is Kind.COUNTER:
        return Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(numbers)


def _histogram_points(
    names: dict[str, str], samples: list[Sample], started_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint]:
    for attributes, group in groupby(samples, lambda sample: _attributes(names, sample)):
        values = list(group)
        buckets = [each for each in values if each.name.endswith("_bucket")]
        counts = [round(each.value) for each in buckets]  # of all measurements up to the bound
        yield HistogramDataPoint(
            attributes,
            started_ns,
            now_ns,
            count=counts[-1],
            sum=next(each.value for each in values if each.name.endswith("_sum")),
            bucket_counts=[counts[0], *(after - before for before, after in pairwise(counts))],
            explicit_bounds=[float(each.labels["le"]) for each in buckets[:-1]],
            min=None,  # type: ignore[arg-type]  # optional in the protocol, and not known
            max=None,  # type: ignore[arg-type]
            exemplars=[found for each in buckets if (found := _exemplar_of(each))],
        )


def _exemplar_of(sample: Sample) -> Exemplar | None:
    exemplar = sample.exemplar
    if exemplar is None or exemplar.timestamp is None:
        return None
    return Exemplar(
        {},
        exemplar.value,
        round(float(exemplar.timestamp) * 1e9),
        span_id=int(exemplar.labels["span_id"], 16),
        trace_id=int(exemplar.labels["trace_id"], 16),
    )


def _attributes(names: dict[str, str], sample: Sample) -> dict[str, Any]:
    """Return the labels by OpenTelemetry's names. Prometheus does not tell an empty label from one that is not set."""
    found = {names[name]: value for name, value in sample.labels.items() if value and name in names}
    return {name: int(value) if name in INTEGER_ATTRIBUTES else value for name, value in found.items()}


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value
