"""Times of a request before it is admitted: at the proxy, and from its headers to its body at this edge."""

from typing import NamedTuple

# s before the admission, beyond which the time of a proxy is wrong, or its clock is.
MAX_FRONT_S = 300.0
NANOS_PER_S = 1_000_000_000


class FrontTimes(NamedTuple):
    """Unix seconds; 0: not known. The clock of the proxy may differ from that of this host, so it is for display."""

    proxied_at: float = 0.0
    received_at: float = 0.0  # at this edge: the headers

    def parts(self, arrived_at: float) -> tuple[float, list[tuple[str, str, int]]]:
        """Return the begin of the request, and the tier, name and nanoseconds of each part before `arrived_at`."""
        received = self.received_at if 0 < arrived_at - self.received_at < MAX_FRONT_S else arrived_at
        parts = [("edge", "receive", _nanos(arrived_at - received))] if received < arrived_at else []
        if not (self.proxied_at > 0 and 0 <= received - self.proxied_at < MAX_FRONT_S):
            return received, parts
        return self.proxied_at, [("envoy", "proxy", _nanos(received - self.proxied_at)), *parts]


NO_TIMES = FrontTimes()


def front_times(proxy_time: str, received_at: float = 0.0) -> FrontTimes:
    """Return the times of a request whose proxy wrote `proxy_time`; empty: it wrote none."""
    try:
        return FrontTimes(float(proxy_time) if proxy_time else 0.0, received_at)
    except ValueError:
        return FrontTimes(0.0, received_at)


def _nanos(seconds: float) -> int:
    return round(seconds * NANOS_PER_S)
