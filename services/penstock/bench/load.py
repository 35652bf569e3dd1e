"""The offered load: prompts, lengths and arrival times, equal for equal seeds. Pure."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.client import Options
from penstock.client.request import Prompt

VOCABULARY = (
    "river gate pressure valve turbine water flow token queue worker stream signal grid steel wheel stone light hand "
    "morning garden letter window music story winter road market harbor engine silver forest measure balance answer "
    "question teacher number color mountain island paper candle bridge table"
)
VOCABULARY_WORDS = VOCABULARY.split()
TOKENS_PER_WORD = 1.3  # of common English in a vocabulary of 30,000 to 50,000 tokens
REQUEST_TIMEOUT_S = 600.0  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRange:
    """Lengths drawn log-uniformly from `low` to `high`, both included, in tokens."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return min(self.high, round(math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One request for a driver to send."""

    prompt: Prompt
    options: Options = field(default_factory=Options)
    number: int = 0
    send_at: float = 0.0  # s from the start of the run; 0 in a closed loop
    cancel_after: int | None = None  # tokens after which the client cancels; None: it reads the whole answer


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """The requests of one run: `rate` per second, or in a closed loop of `concurrency` clients if `rate` is 0."""

    requests: int
    concurrency: int = 1
    rate: float = 0.0  # requests/s with Poisson arrivals
    prompt_lengths: LengthRange = LengthRange(low=16, high=128)
    output_lengths: LengthRange = LengthRange(low=16, high=64)
    cancel_share: float = 0.0  # of the clients
    seed: int = 0

    def planned_requests(self) -> Iterator[BenchRequest]:
        rng = random.Random(self.seed)
        send_at = 0.0
        for number in range(self.requests):
            output_tokens = self.output_lengths.draw(rng)
            cancels = rng.random() < self.cancel_share
            yield BenchRequest(
                number=number,
                prompt=random_prompt(self.prompt_lengths.draw(rng), rng),
                options=Options(
                    max_output_tokens=output_tokens, temperature=0.0, ignore_eos=True, timeout=REQUEST_TIMEOUT_S
                ),
                send_at=send_at,
                cancel_after=rng.randrange(output_tokens) if cancels else None,
            )
            send_at += rng.expovariate(self.rate) if self.rate else 0.0


def random_prompt(prompt_tokens: int, rng: random.Random) -> str:
    """Return text of about `prompt_tokens` tokens that shares no prefix with other prompts."""
    words = max(1, round(prompt_tokens / TOKENS_PER_WORD) - 2)
    return " ".join([str(rng.randrange(10**6)), *rng.choices(VOCABULARY_WORDS, k=words)])
