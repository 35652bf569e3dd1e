"""Choices: the requests that one call with several answers or prompts consists of."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.edge.request.spec import Prompt, RequestSpec
from penstock.mesh.choice_seed import choice_seed


def choice_specs(
    spec: RequestSpec, inputs: Sequence[Prompt], count: int, draw_seed: Callable[[], int]
) -> tuple[RequestSpec, ...]:
    """Return the requests of `count` answers to each of `inputs`, prompt after prompt.

    A given seed is that of each prompt's first choice. Otherwise each prompt has a seed of its own.
    """
    specs = []
    for each in inputs:
        seed = draw_seed() if spec.seed is None else spec.seed
        specs += [replace(spec, input=each, n=1, seed=choice_seed(seed, choice)) for choice in range(count)]
    return tuple(specs)
