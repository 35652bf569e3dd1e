"""Conversions of durations on the wire, in which a peer may have sent any value.

No frame carries a point in time, because the clocks of two hosts differ: a deadline is sent as the time left, and a
past event as its age. The receiver adds it to its own clock.
"""

import math

from google.protobuf.duration_pb2 import Duration

from penstock.mesh.limits.bounds import REQUEST_NANOS, SPAN_S

NANOS_PER_S = 1_000_000_000
MAX_NANOS = REQUEST_NANOS  # of the time left or the age of a request; the longest timeout is a day


def seconds_of(duration: Duration) -> float:
    """Return seconds. Unlike `ToTimedelta` it accepts every value of a message, so that bounds can be checked."""
    return float(duration.seconds) + duration.nanos / 1e9


def set_seconds(duration: Duration, seconds: float) -> None:
    """Set a duration of 0 to `SPAN_S` seconds, the range of all frames; other values are limited to it, NaN to 0.

    It takes half the time of `FromNanoseconds`, a quarter of `FromTimedelta`.
    """
    if not 0.0 <= seconds <= SPAN_S:
        seconds = min(float(SPAN_S), max(0.0, seconds))  # 0.0 first, which `max` then returns for NaN
    duration.seconds, duration.nanos = divmod(round(seconds * 1e9), NANOS_PER_S)


def nanos_left(deadline: float, now: float) -> int:
    """Return the time left until `deadline` as a frame has it: 1 ns to `MAX_NANOS`; 0 if the deadline is infinite."""
    return 0 if math.isinf(deadline) else min(MAX_NANOS, max(1, round((deadline - now) * NANOS_PER_S)))


def nanos_since(then: float, now: float) -> int:
    """Return the age of an event as a frame has it, at most `MAX_NANOS`."""
    return min(MAX_NANOS, max(0, round((now - then) * NANOS_PER_S)))
