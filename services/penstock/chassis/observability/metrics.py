"""Metrics of one process: instruments of `prometheus_client`, made from series and exported in two formats.

An instrument is bound to its labels once and costs under 1 us per event; the metrics SDK of OpenTelemetry looks labels
up for each event and costs 7 us. Values that the process has anyway are read at each collection instead, by a function
that `observing` registers. Both `/metrics` and the OTLP exporter collect from `REGISTRY`.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.chassis.observability.series import LOOP_DELAY, Kind, Series
from penstock.chassis.observability.trace_context import SPAN_ID, TRACE_ID, is_sampled

REGISTRY = CollectorRegistry()
disable_created_metrics()  # type: ignore[no-untyped-call]  # a further series for each, which Prometheus does not need
GCCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
ProcessCollector(registry=REGISTRY)

STALL_TIMEOUT_S = 1.0  # that a collection waits for the loop

_series_by_family: dict[str, Series] = {}


class Observation(NamedTuple):
    """The value of a series at a collection. `labels` are the values of the series' labels, in their order."""

    series: Series
    value: float
    labels: Sequence[str] = ()


Observe = Callable[[], Iterable[Observation]]


def counter(series: Series) -> Counter:
    """Make the instrument of a counter. Bind labels by `labels(*values)` once, and keep what it returns."""
    _register(series)
    return Counter(series.family, series.meaning, series.prometheus_labels, registry=REGISTRY)


def histogram(series: Series) -> Histogram:
    """Make the instrument of a histogram, as `counter`."""
    _register(series)
    names = series.prometheus_labels
    return Histogram(series.family, series.meaning, names, buckets=series.buckets, registry=REGISTRY)


@contextmanager
def observing(observe: Observe) -> Iterator[None]:
    """Export the counters and gauges that `observe` returns, until the block ends.

    The running loop calls it at each collection, between two events, so that it sees no half-made change.
    """
    collector = _ObservingCollector(observe, asyncio.get_running_loop())
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


def exemplar_in(traceparent: str) -> dict[str, str] | None:
    """Return the exemplar of the span that a traceparent, valid or empty, names; None if its trace is not sampled."""
    if not is_sampled(traceparent):
        return None
    return {"trace_id": traceparent[TRACE_ID], "span_id": traceparent[SPAN_ID]}


def series_of(family: str) -> Series | None:
    """Return the series of a metric family; None for one of the Python runtime or of the process."""
    return _series_by_family.get(family)


class _ObservingCollector(Collector):
    """Asks the loop of the observed objects for their values. While the loop stalls, the last values are exported."""

    def __init__(self, observe: Observe, loop: asyncio.AbstractEventLoop) -> None:
        self._observe = observe
        self._loop = loop
        self._last: Sequence[Observation] = ()
        self._asked_at = 0.0  # s of the performance counter

    def describe(self) -> Iterable[Metric]:
        return ()  # observing at registration would be too early

    def collect(self) -> Iterable[Metric]:
        families: dict[Series, CounterMetricFamily | GaugeMetricFamily] = {}
        for series, value, labels in self._observations():
            family = families.get(series)
            if family is None:
                _register(series)
                made = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
                family = families[series] = made(series.family, series.meaning, labels=series.prometheus_labels)
            family.add_metric(labels, value)
        return families.values()

    def _observations(self) -> Sequence[Observation]:
        if self._is_on_loop():
            self._read(None)
            return self._last
        has_read = threading.Event()
        self._asked_at = time.perf_counter()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._read, has_read)
            has_read.wait(STALL_TIMEOUT_S)
        return self._last

    def _read(self, has_read: threading.Event | None) -> None:
        delay_s = time.perf_counter() - self._asked_at if has_read else 0.0
        try:
            self._last = [*self._observe(), Observation(LOOP_DELAY, delay_s)]
        finally:
            if has_read:
                has_read.set()

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


def _register(series: Series) -> None:
    _series_by_family[series.family] = series
