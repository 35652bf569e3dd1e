"""Sampling of traces: decided at the head of a trace, and at its end for failed and slow requests.

Pure: no clock, no I/O. The decision at the head follows OTEL_TRACES_SAMPLER. A trace that it leaves out is recorded all
the same by the process in which its request ends, as far as this process knows it, if the request failed or was slow.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.chassis.observability.trace_context import NOT_SAMPLED, SAMPLED, TRACE_ID, is_sampled

PARENT_BASED_PREFIX = "parentbased_"
SAMPLERS = (
    *("always_on", "always_off", "traceidratio"),
    *("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"),
)
_RATIO_BITS = 56  # of the end of a trace id, which W3C Trace Context, level 2, says are random

SLOW_SHARE = 0.02  # of all requests; twice the slowest 1 %, because the threshold is an estimate
WINDOW = 1_024  # requests, from which the threshold of the next ones follows
FIRST_WINDOW = 64  # requests; they are all kept
KEPT_PER_S = 20.0  # traces of each reason that are kept, so that a flood of errors costs little
BURST = 100.0
MAX_DECISIONS = 4_096  # remembered, for the other spans of the same traces


class SamplerInvalid(ValueError):
    """OTEL_TRACES_SAMPLER or OTEL_TRACES_SAMPLER_ARG is not a sampler."""


@dataclass(frozen=True, slots=True)
class HeadSampler:
    """Decides whether a trace is recorded when its first span begins."""

    ratio: float = 1.0  # share of new traces
    is_parent_based: bool = True  # a caller that sampled its trace, or did not, has decided

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "HeadSampler":
        """Read OTEL_TRACES_SAMPLER and its argument. Raises SamplerInvalid."""
        name, text = environ.get("OTEL_TRACES_SAMPLER", ""), environ.get("OTEL_TRACES_SAMPLER_ARG", "")
        kind = name.strip().lower() or "parentbased_always_on"
        if kind not in SAMPLERS:
            raise SamplerInvalid(f"OTEL_TRACES_SAMPLER={name!r}: must be one of {', '.join(SAMPLERS)}")
        base = kind.removeprefix(PARENT_BASED_PREFIX)
        ratio = _ratio(text) if base == "traceidratio" else float(base == "always_on")
        return cls(ratio, base != kind)

    def flags(self, parent: str, trace_id: str) -> str:
        """Return the flags of a span below a valid `parent`, or of the first span of a trace if that is empty."""
        if parent and self.is_parent_based:
            return SAMPLED if is_sampled(parent) else NOT_SAMPLED
        if self.ratio >= 1.0:
            return SAMPLED
        is_chosen = int(trace_id[-_RATIO_BITS // 4 :], 16) < self.ratio * 2**_RATIO_BITS
        return SAMPLED if is_chosen else NOT_SAMPLED


def _ratio(text: str) -> float:
    try:
        ratio = float(text or 1.0)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise SamplerInvalid(f"OTEL_TRACES_SAMPLER_ARG={text!r}: must be a number from 0 to 1")
    return ratio


class SlowThreshold:
    """The duration that about `SLOW_SHARE` of the requests exceed, estimated from the last window of them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._window = FIRST_WINDOW
        self._seen = 0
        self._longest: list[float] = []  # heap of the longest durations of this window

    def is_slow(self, duration_s: float) -> bool:
        """Count a request, and return whether it is slower than the threshold."""
        is_slow = duration_s >= self.seconds
        if len(self._longest) < max(1, round(SLOW_SHARE * self._window)):
            heapq.heappush(self._longest, duration_s)
        elif duration_s > self._longest[0]:
            heapq.heapreplace(self._longest, duration_s)
        self._seen += 1
        if self._seen >= self._window:
            self.seconds, self._longest = self._longest[0], []
            self._seen, self._window = 0, min(WINDOW, 2 * self._window)
        return is_slow


@dataclass(slots=True)
class KeptRate:
    """A token bucket of traces."""

    _left: float = BURST
    _at: float = 0.0  # s

    def take(self, now: float) -> bool:
        self._left = min(BURST, self._left + KEPT_PER_S * max(0.0, now - self._at))
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True)
class TailSampler:
    """Keeps unsampled traces of failed and of slow requests, each at a bounded rate. Times are s of any one clock."""

    threshold: SlowThreshold = field(default_factory=SlowThreshold)
    _errors: KeptRate = field(default_factory=KeptRate)
    _slow: KeptRate = field(default_factory=KeptRate)
    _decisions: dict[str, bool] = field(default_factory=dict)  # by trace id, oldest first

    def keeps_request(self, traceparent: str, duration_s: float, now: float, *, failed: bool) -> bool:
        """Decide about the trace of a request that has ended."""
        is_slow = self.threshold.is_slow(duration_s)
        return (failed or is_slow) and self._decide(traceparent[TRACE_ID], self._errors if failed else self._slow, now)

    def keeps_call(self, traceparent: str, now: float, *, failed: bool) -> bool:
        """Decide about the span of a call: kept with its request, or for an error if it had none."""
        trace_id = traceparent[TRACE_ID]
        return self._decide(trace_id, self._errors, now) if failed else self._decisions.get(trace_id, False)

    def _decide(self, trace_id: str, rate: KeptRate, now: float) -> bool:
        known = self._decisions.get(trace_id)
        if known is not None:
            return known
        if len(self._decisions) >= MAX_DECISIONS:
            del self._decisions[next(iter(self._decisions))]
        self._decisions[trace_id] = kept = rate.take(now)
        return kept
