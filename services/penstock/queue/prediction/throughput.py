"""How fast a model's tickets leave this shard, for hints where no scheduler has measured its workers yet."""

import math
from dataclasses import dataclass

TIME_CONSTANT_S = 10.0  # s; half a minute ago counts for 5 %
WARM_UP_S = 1.0  # s of history before anything is said


@dataclass(slots=True)
class Throughput:
    """Tokens per second of what is noted: an exponentially weighted mean that is honest about its youth."""

    time_constant: float = TIME_CONSTANT_S  # s
    warm_up: float = WARM_UP_S  # s
    began_at: float | None = None
    _updated_at: float = 0.0
    _decayed_tokens: float = 0.0  # tokens, older ones counting less

    def record(self, tokens: int, now: float) -> None:
        if self.began_at is None:
            self.began_at = self._updated_at = now
        self._decayed_tokens = self._decayed(now) + tokens
        self._updated_at = now

    def tokens_per_second(self, now: float) -> float:
        """Return 0 while too little is known."""
        if self.began_at is None or now - self.began_at < self.warm_up:
            return 0.0
        return self._decayed(now) / (self.time_constant * -math.expm1((self.began_at - now) / self.time_constant))

    def _decayed(self, now: float) -> float:
        return self._decayed_tokens * math.exp(min(0.0, self._updated_at - now) / self.time_constant)
