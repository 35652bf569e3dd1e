"""The requests a proof offers, over and over, so that each has a fault-free run to be held against. Pure."""

import random
from dataclasses import dataclass

from penstock.bench.load import prompt_of
from penstock.client import Options

STOP_AT = 0.6  # of an answer; where its stop string is taken from
STOP_LENGTH = 6  # characters


@dataclass(frozen=True, slots=True)
class Wish:
    prompt: str
    options: Options


def catalog(count: int, tokens: int, seed: int) -> list[Wish]:
    """Half of them greedy, half sampled with a seed of their own."""
    rng = random.Random(seed)
    wishes = []
    for number in range(count):
        options = Options(max_output_tokens=rng.randint(tokens // 2, tokens), ignore_eos=True)
        if number % 2:
            options |= Options(temperature=0.9, top_p=0.95, seed=rng.getrandbits(32))
        else:
            options |= Options(temperature=0.0, seed=number)
        wishes.append(Wish(prompt_of(rng.randint(16, 96), rng), options))
    return wishes


def with_stop(wish: Wish, answer: str) -> Wish:
    """The same request, ended by a string that its answer is known to come to."""
    start = int(len(answer) * STOP_AT)
    stop = answer[start : start + STOP_LENGTH]
    return Wish(wish.prompt, Options(**{**wish.options, "stop": [stop]}))
