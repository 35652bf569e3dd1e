"""Deadline headers: the time limit that an HTTP caller states for its answer."""

import math
from collections.abc import Callable

from penstock.chassis.errors import InvalidArgument
from penstock.edge.request import limits

REQUEST_TIMEOUT_MS = "x-request-timeout-ms"
# What the official clients send, in seconds, of their own accord: the time that they wait for the next bytes of an
# answer. An answer that is sent as a whole has no bytes before its end, so for it this is the time for all of it.
CLIENT_TIMEOUTS = ("x-stainless-read-timeout", "x-stainless-timeout")


def time_limit(header: Callable[[str], str], *, is_streamed: bool) -> float | None:
    """Return the time limit in seconds, None if the headers state none. `header` returns "" for an absent one.

    Raises InvalidArgument for a `x-request-timeout-ms` out of range. A timeout of a client out of range is ignored.
    """
    stated = [] if is_streamed else [seconds for name in CLIENT_TIMEOUTS if (seconds := _seconds(header(name))) > 0]
    if own := header(REQUEST_TIMEOUT_MS):
        seconds = _seconds(own) / 1e3
        if not 0 < seconds <= limits.TIMEOUT_S:
            text = f"{REQUEST_TIMEOUT_MS} is {own[:20]!r}; allowed is above 0, up to {limits.TIMEOUT_S * 1e3:.0f}"
            raise InvalidArgument(text, field=REQUEST_TIMEOUT_MS)
        stated.append(seconds)
    return min(stated, default=None)


def _seconds(text: str) -> float:
    """Return a finite number; 0 for any other text."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
