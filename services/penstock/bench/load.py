"""What is offered: prompts, lengths and arrival times, the same for the same seed. Pure."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

VOCABULARY = (
    "river gate pressure valve turbine water flow token queue worker stream signal grid steel wheel stone light hand "
    "morning garden letter window music story winter road market harbor engine silver forest measure balance answer "
    "question teacher number color mountain island paper candle bridge table"
)
VOCABULARY_WORDS = VOCABULARY.split()
TOKENS_PER_WORD = 1.3  # of common English in a vocabulary of 30,000 to 50,000


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRange:
    """Lengths drawn log-uniformly from `low` to `high`, both included, in tokens."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return min(self.high, round(math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One request to send."""

    number: int
    prompt: str
    output_tokens: int
    send_at: float  # s from the start of the run; 0 in a closed loop
    cancel_after: int | None = None  # leaves after this many tokens; None: stays to the end


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """A run's offer: `requests` of them, `rate` per s or as fast as `concurrency` clients take turns."""

    requests: int
    concurrency: int = 1
    rate: float = 0.0  # requests/s with Poisson arrivals; 0: closed loop
    prompt_lengths: LengthRange = LengthRange(low=16, high=128)
    output_lengths: LengthRange = LengthRange(low=16, high=64)
    cancel_share: float = 0.0
    seed: int = 0

    def planned_requests(self) -> Iterator[BenchRequest]:
        rng = random.Random(self.seed)
        at = 0.0
        for number in range(self.requests):
            output_tokens = self.output_lengths.draw(rng)
            leaves = rng.random() < self.cancel_share
            yield BenchRequest(
                number=number,
                prompt=random_prompt(self.prompt_lengths.draw(rng), rng),
                output_tokens=output_tokens,
                send_at=at,
                cancel_after=rng.randrange(output_tokens) if leaves else None,
            )
            at += rng.expovariate(self.rate) if self.rate else 0.0


def random_prompt(prompt_tokens: int, rng: random.Random) -> str:
    """Return text of about `tokens` tokens whose beginning is like no other's."""
    words = max(1, round(prompt_tokens / TOKENS_PER_WORD) - 2)
    return " ".join([str(rng.randrange(10**6)), *rng.choices(VOCABULARY_WORDS, k=words)])
