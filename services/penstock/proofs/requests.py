"""The requests a proof offers, over and over, so that each has a fault-free run to be held against. Pure."""

import random
from dataclasses import dataclass

from penstock.bench.load import random_prompt
from penstock.client import Options

STOP_POSITION_SHARE = 0.6  # of an answer; where its stop string is taken from
STOP_LENGTH_CHARS = 6  # characters


@dataclass(frozen=True, slots=True)
class ProofRequest:
    prompt: str
    options: Options


def request_catalog(count: int, tokens: int, seed: int) -> list[ProofRequest]:
    """Half of them greedy, half sampled with a seed of their own."""
    rng = random.Random(seed)
    wishes = []
    for number in range(count):
        options = Options(max_output_tokens=rng.randint(tokens // 2, tokens), ignore_eos=True)
        if number % 2:
            options |= Options(temperature=0.9, top_p=0.95, seed=rng.getrandbits(32))
        else:
            options |= Options(temperature=0.0, seed=number)
        wishes.append(ProofRequest(random_prompt(rng.randint(16, 96), rng), options))
    return wishes


def with_stop(request: ProofRequest, answer: str) -> ProofRequest:
    """The same request, ended by a string that its answer is known to come to."""
    start = int(len(answer) * STOP_POSITION_SHARE)
    stop = answer[start : start + STOP_LENGTH_CHARS]
    return ProofRequest(request.prompt, Options(**{**request.options, "stop": [stop]}))
