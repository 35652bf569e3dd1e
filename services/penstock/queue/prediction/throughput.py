"""Throughput: the rate at which tickets of a model leave this shard, used until schedulers report measured rates."""

import math
from dataclasses import dataclass

TIME_CONSTANT_S = 10.0  # s; tokens 30 s ago count 5 %
WARM_UP_S = 1.0  # s of history before a rate is returned


@dataclass(slots=True)
class Throughput:
    """Exponentially weighted mean of recorded tokens per second, corrected for a short history."""

    time_constant: float = TIME_CONSTANT_S  # s
    warm_up: float = WARM_UP_S  # s
    began_at: float | None = None
    _updated_at: float = 0.0
    _decayed_tokens: float = 0.0  # tokens, decayed by their age

    def record(self, tokens: int, now: float) -> None:
        if self.began_at is None:
            self.began_at = self._updated_at = now
        self._decayed_tokens = self._decayed(now) + tokens
        self._updated_at = now

    def tokens_per_second(self, now: float) -> float:
        """Return the rate; 0.0 during the warm-up."""
        if self.began_at is None or now - self.began_at < self.warm_up:
            return 0.0
        return self._decayed(now) / (self.time_constant * -math.expm1((self.began_at - now) / self.time_constant))

    def _decayed(self, now: float) -> float:
        return self._decayed_tokens * math.exp(min(0.0, self._updated_at - now) / self.time_constant)
