"""How large prompts are, as far as it matters to one of them: what share of all prompt tokens is in shorter ones."""

from dataclasses import dataclass, field
from math import log2

MEAN_PROMPT_GAIN = 1 / 64  # of the mean
BUCKETS_PER_OCTAVE = 2
OCTAVES = 24
MAX_HISTOGRAM_TOKENS = 1 << 20  # tokens; beyond, all that was seen counts half


@dataclass(slots=True)
class PromptSizeHistogram:
    """A histogram of half-octaves, older prompts fading."""

    _tokens: list[float] = field(default_factory=lambda: [0.0] * (BUCKETS_PER_OCTAVE * OCTAVES))
    _total_tokens: float = 0.0
    mean_tokens: float = 0.0  # tokens

    def record(self, prompt_tokens: int) -> None:
        self._tokens[_bucket_index(prompt_tokens)] += prompt_tokens
        self._total_tokens += prompt_tokens
        self.mean_tokens += (prompt_tokens - self.mean_tokens) * (MEAN_PROMPT_GAIN if self.mean_tokens else 1.0)
        if self._total_tokens > MAX_HISTOGRAM_TOKENS:
            self._tokens = [each / 2 for each in self._tokens]
            self._total_tokens /= 2

    def share_of_shorter(self, prompt_tokens: int) -> float:
        """Of those about as long, half is taken to be shorter; so it is where nothing is known."""
        if not self._total_tokens:
            return 0.5
        own = _bucket_index(prompt_tokens)
        return (sum(self._tokens[:own]) + self._tokens[own] / 2) / self._total_tokens


def _bucket_index(prompt_tokens: int) -> int:
    return (
        min(BUCKETS_PER_OCTAVE * OCTAVES - 1, int(BUCKETS_PER_OCTAVE * log2(prompt_tokens))) if prompt_tokens > 1 else 0
    )
