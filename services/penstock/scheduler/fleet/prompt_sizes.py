"""Sizes of recent prompts, from which the share of a backlog follows that a new prompt waits for or delays."""

from dataclasses import dataclass, field

SIZES = 33  # powers of two; the tokens of a ticket's prompt have 32 bits
MAX_PROMPTS = 1_024  # recorded prompts, at which all of them begin to count half
PROMPTS_PER_UPDATE = 32
MEAN_SHARE_OF_LIMIT = 0.75  # of the upper limit of a size: the mean of prompts of this size


def _zeros() -> list[float]:
    return [0.0] * SIZES


@dataclass(slots=True)
class PromptSizes:
    """Recent prompts by tokens to compute, in powers of two.

    A worker computes its shortest prompt first (`worker/engine/batching/policy.py`). So a new prompt waits for the
    shorter prompts of a backlog, and delays each longer one by its own tokens. The rest of the backlog has no effect.
    """

    _prompts: list[float] = field(default_factory=_zeros)
    _tokens: list[float] = field(default_factory=_zeros)
    _recorded: int = 0
    _delay_shares: list[float] = field(default_factory=lambda: [1.0] * SIZES)

    def record(self, tokens: int) -> None:
        size = tokens.bit_length()
        self._prompts[size] += 1
        self._tokens[size] += tokens
        self._recorded += 1
        if not self._recorded % PROMPTS_PER_UPDATE:
            self._update()

    def delay_share(self, tokens: int) -> float:
        """Return the share of a backlog that a prompt with `tokens` to compute waits for or delays.

        A backlog is taken to have the sizes of recent prompts. The share is 1 until enough prompts were recorded.
        """
        return self._delay_shares[tokens.bit_length()]

    def _update(self) -> None:
        total = sum(self._tokens)
        longer_prompts = longer_tokens = 0.0
        for size in reversed(range(SIZES)):
            # Half of the prompts of the same size are longer.
            prompts, tokens = longer_prompts + self._prompts[size] / 2, longer_tokens + self._tokens[size] / 2
            delayed = min(tokens, prompts * MEAN_SHARE_OF_LIMIT * (1 << size))
            self._delay_shares[size] = (total - tokens + delayed) / total if total else 1.0
            longer_prompts += self._prompts[size]
            longer_tokens += self._tokens[size]
        if self._recorded >= MAX_PROMPTS:
            self._recorded //= 2
            self._prompts = [each / 2 for each in self._prompts]
            self._tokens = [each / 2 for each in self._tokens]
