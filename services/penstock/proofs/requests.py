"""The requests of a proof: a fixed catalog that is sent repeatedly, so that each has a fault-free reference. Pure."""

import random
from dataclasses import replace

from penstock.bench.load import BenchRequest, random_prompt
from penstock.client import Options

STOP_POSITION_SHARE = 0.6  # of an answer: the position from which its stop string is taken
STOP_LENGTH_CHARS = 6  # characters


def request_catalog(count: int, tokens: int, seed: int) -> list[BenchRequest]:
    """Return requests for up to `tokens` output tokens; half are greedy, half are sampled with their own seed."""
    rng = random.Random(seed)
    requests = []
    for number in range(count):
        options = Options(max_output_tokens=rng.randint(tokens // 2, tokens), ignore_eos=True)
        if number % 2:
            options |= Options(temperature=0.9, top_p=0.95, seed=rng.getrandbits(32))
        else:
            options |= Options(temperature=0.0, seed=number)
        requests.append(BenchRequest(prompt=random_prompt(rng.randint(16, 96), rng), options=options, number=number))
    return requests


def with_stop(request: BenchRequest, answer: str, number: int = 0) -> BenchRequest:
    """Return the same request as number `number`, with a stop string that occurs in its `answer`."""
    start = int(len(answer) * STOP_POSITION_SHARE)
    stop = answer[start : start + STOP_LENGTH_CHARS]
    return replace(request, number=number, options=Options(**{**request.options, "stop": [stop]}))
