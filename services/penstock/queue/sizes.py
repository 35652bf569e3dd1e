"""How large prompts are, as far as it matters to one of them: what share of all prompt tokens is in shorter ones."""

from dataclasses import dataclass, field
from math import log2

GAIN = 1 / 64  # of the mean
PER_OCTAVE = 2
OCTAVES = 24
REMEMBERED = 1 << 20  # tokens; beyond, all that was seen counts half


@dataclass(slots=True)
class Sizes:
    """A histogram of half-octaves, older prompts fading."""

    _tokens: list[float] = field(default_factory=lambda: [0.0] * (PER_OCTAVE * OCTAVES))
    _sum: float = 0.0
    mean: float = 0.0  # tokens

    def note(self, prompt_tokens: int) -> None:
        self._tokens[_bucket(prompt_tokens)] += prompt_tokens
        self._sum += prompt_tokens
        self.mean += (prompt_tokens - self.mean) * (GAIN if self.mean else 1.0)
        if self._sum > REMEMBERED:
            self._tokens = [each / 2 for each in self._tokens]
            self._sum /= 2

    def share_of_shorter(self, prompt_tokens: int) -> float:
        """Of those about as long, half is taken to be shorter; so it is where nothing is known."""
        if not self._sum:
            return 0.5
        own = _bucket(prompt_tokens)
        return (sum(self._tokens[:own]) + self._tokens[own] / 2) / self._sum


def _bucket(prompt_tokens: int) -> int:
    return min(PER_OCTAVE * OCTAVES - 1, int(PER_OCTAVE * log2(prompt_tokens))) if prompt_tokens > 1 else 0
