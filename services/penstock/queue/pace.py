"""How fast a model's tickets leave this shard, for hints where no scheduler has measured its workers yet."""

import math
from dataclasses import dataclass

MEMORY = 10.0  # s; half a minute ago counts for 5 %
WARM_UP = 1.0  # s of history before anything is said


@dataclass(slots=True)
class Pace:
    """Tokens per second of what is noted: an exponentially weighted mean that is honest about its youth."""

    memory: float = MEMORY  # s
    warm_up: float = WARM_UP  # s
    began: float | None = None
    _at: float = 0.0
    _weighted: float = 0.0  # tokens, older ones counting less

    def note(self, tokens: int, now: float) -> None:
        if self.began is None:
            self.began = self._at = now
        self._weighted = self._faded(now) + tokens
        self._at = now

    def tokens_per_second(self, now: float) -> float:
        """Return 0 while too little is known."""
        if self.began is None or now - self.began < self.warm_up:
            return 0.0
        return self._faded(now) / (self.memory * -math.expm1((self.began - now) / self.memory))

    def _faded(self, now: float) -> float:
        return self._weighted * math.exp(min(0.0, self._at - now) / self.memory)
