"""The clock of one host: a wrong start, a drift and steps. No two hosts of a world have the same time."""

import random
from dataclasses import dataclass

EPOCH_UNIX_S = 1_700_000_000.0  # Unix time in s at which every world starts
MAX_OFFSET_S = 3_600.0  # s by which a host's time is wrong when the world starts
MAX_DRIFT = 0.01  # s that a host's clocks gain or lose per s
MAX_UPTIME_S = 1e6  # s that a host has run when the world starts


@dataclass(slots=True)
class HostClock:
    """Converts the time of the world to the time of a host's processes. The default is the world's time."""

    offset_s: float = 0.0  # s by which Unix time is ahead
    uptime_s: float = 0.0  # s of the monotonic clock when the world starts
    rate: float = 1.0  # s of the host per s of the world

    def unix(self, world_s: float) -> float:
        return EPOCH_UNIX_S + self.offset_s + self.rate * world_s

    def monotonic(self, world_s: float) -> float:
        return self.uptime_s + self.rate * world_s

    def world_time(self, monotonic_s: float) -> float:
        """Return the time of the world at which the monotonic clock shows `monotonic_s`."""
        return (monotonic_s - self.uptime_s) / self.rate

    def step(self, seconds: float) -> None:
        """Set Unix time forwards or back, as NTP or an operator does. The monotonic clock does not step."""
        self.offset_s += seconds

    @classmethod
    def random(cls, rng: random.Random) -> "HostClock":
        return cls(
            offset_s=rng.choice((0.0, rng.uniform(-1.0, 1.0), rng.uniform(-MAX_OFFSET_S, MAX_OFFSET_S))),
            uptime_s=rng.uniform(0.0, MAX_UPTIME_S),
            rate=1.0 + rng.choice((0.0, rng.uniform(-MAX_DRIFT, MAX_DRIFT))),
        )
