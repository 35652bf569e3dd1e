"""Series: the definition of one metric, from which its instrument, its export and its documentation are made.

Each tier defines its series in its module `series`; those of every tier are here. docs/metrics.md is generated from
them. A series has one owner: exactly one tier counts an event, so that a sum over all processes counts it once.
"""

from dataclasses import dataclass
from enum import StrEnum

from penstock.chassis.observability import semconv


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


# Suffixes of Prometheus' names by unit (UCUM); units in braces, such as {token}, have none.
UNIT_SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}

MODEL = "model"  # name without version
CLASS = "class"  # interactive, standard or batch
TENANT = "tenant"  # one of the busiest tenants, or `other`
REASON = "reason"  # of a PenstockError

# The bounds of a wait are of the series E12, of which neighbours differ by a fifth: a quantile that is interpolated
# between two of them is within 10 % of the true one. The coarse ones are for series with many label sets.
_E12 = (1.0, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)
_ALL_WAITS = [round(step * 10.0**power, 4) for power in range(-3, 2) for step in _E12]
WAIT_BUCKETS = (0.005, *(each for each in _ALL_WAITS if 0.005 < each < 60.0), 60.0, 120.0, 300.0, 1_800.0)
COARSE_WAIT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class Series:
    """One metric. `name`, `unit` and `labels` are OpenTelemetry's; Prometheus' name follows from them."""

    name: str
    kind: Kind
    unit: str  # UCUM
    meaning: str  # one line for an operator
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds of a histogram, in `unit`

    @property
    def family(self) -> str:
        """Prometheus' name of the metric family, without the suffix of a counter or of a bucket."""
        return _prometheus(self.name) + UNIT_SUFFIXES.get(self.unit, "")

    @property
    def prometheus_name(self) -> str:
        """The name by which a query selects a counter or a gauge; that of a histogram has a further suffix."""
        return f"{self.family}_total" if self.kind is Kind.COUNTER else self.family

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(map(_prometheus, self.labels))


def _prometheus(name: str) -> str:
    return name.replace(".", "_")


def counter(name: str, unit: str, meaning: str, *labels: str) -> Series:
    return Series(name, Kind.COUNTER, unit, meaning, labels)


def gauge(name: str, unit: str, meaning: str, *labels: str) -> Series:
    return Series(name, Kind.GAUGE, unit, meaning, labels)


def histogram(name: str, meaning: str, *labels: str, buckets: tuple[float, ...], unit: str = "s") -> Series:
    return Series(name, Kind.HISTOGRAM, unit, meaning, labels, buckets)


RPC_DURATION = histogram(
    semconv.RPC_SERVER_CALL_DURATION,
    "Duration of inbound gRPC calls, except sessions and calls of operators.",
    semconv.RPC_SYSTEM_NAME,
    semconv.RPC_METHOD,
    semconv.RPC_RESPONSE_STATUS_CODE,
    semconv.ERROR_TYPE,
    buckets=semconv.RPC_DURATION_BUCKETS,
)
CALLS_ACTIVE = gauge("penstock.process.calls", "{call}", "Inbound gRPC calls in flight, with sessions.")
STREAMS_OPEN = gauge("penstock.process.streams", "{stream}", "Streams to and from other processes that are open.")
FRAMES_REFUSED = counter(
    "penstock.process.frames_refused",
    "{frame}",
    "Frames and messages that were not accepted: unknown (a newer peer), out_of_range or malformed.",
    "kind",
)
DRAINING = gauge("penstock.process.draining", "{flag}", "1 from a stop request until the process ends.")
CERTIFICATE_EXPIRY = gauge(
    "penstock.certificate.expiry", "s", "Unix time at which a certificate of the process ends.", "certificate"
)
LOOP_DELAY = gauge(
    "penstock.process.loop_delay", "s", "Time until the event loop, busy with other events, took up this collection."
)

# Series of every tier.
SERIES = (RPC_DURATION, CALLS_ACTIVE, STREAMS_OPEN, FRAMES_REFUSED, DRAINING, CERTIFICATE_EXPIRY, LOOP_DELAY)
