"""Sharing of a step's token budget among the prompts that one worker prefills. Pure arithmetic.

The model of the worker's batching policy (`worker/engine/batching/policy.py`): the oldest prompt has a share of each
step's budget, and the prompt with the fewest tokens left has the rest. Express prompts are computed before all others;
the small share that the policy leaves to the oldest prompt meanwhile is not modelled. Batch prompts are left out,
because workers prefill them after all others.
"""

from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

OLDEST_PROMPT_BUDGET_SHARE = 0.25  # of a step's budget, kept for the oldest prompt, independent of its length
CURRENT_STEP_SHARE = 0.5  # of the current step of a busy worker that remains, in the mean
MIN_LEFT_TOKENS = 1e-6  # tokens; a prompt with fewer left is complete


class StepCosts(NamedTuple):
    """The cost of one worker's steps."""

    budget_tokens: float  # prompt tokens of a step
    decode_step_time: float  # s of a step that prefills nothing
    seconds_per_prefill_token: float  # s that a prompt token adds to a step
    full_step_time: float  # s of a step that spends its budget
    tokens_per_second: float  # prompt tokens per s, in such steps


def idle_prefill_time(steps: StepCosts, prompt_tokens: float) -> float:
    """Return the s in which a worker without other prompts computes one."""
    count = ceil(prompt_tokens / steps.budget_tokens)
    return count * steps.decode_step_time + prompt_tokens * steps.seconds_per_prefill_token


def busy_prefill_time(steps: StepCosts, completion: float, total_tokens: float) -> float:
    """Return the s until a busy worker has computed `completion` tokens and ends the step.

    `total_tokens`: all that the worker has to compute, which bounds the tokens in these steps.
    """
    count = completion / steps.budget_tokens + CURRENT_STEP_SHARE
    tokens = min(count * steps.budget_tokens, total_tokens)
    return count * steps.decode_step_time + tokens * steps.seconds_per_prefill_token


def completions(left: list[float], express: Sequence[bool], max_tokens: float = inf) -> list[float]:
    """Return the number of tokens, of all prompts together, that a worker has computed when each prompt is complete.

    `left` has the tokens of each prompt, oldest first. It is updated in place to what remains after `max_tokens`; a
    prompt that is not complete by then has an infinite completion.
    """
    found, computed, indexes = [inf] * len(left), 0.0, range(len(left))
    if not any(express):
        _share_budget(left, indexes, found, computed, max_tokens)
    else:
        first, last = [each for each in indexes if express[each]], [each for each in indexes if not express[each]]
        computed = _share_budget(left, first, found, computed, max_tokens)
        _share_budget(left, last, found, computed, max_tokens)
    return found


def _share_budget(
    left: list[float], indexes: Sequence[int], found: list[float], computed: float, max_tokens: float
) -> float:
    """Compute the prompts at `indexes` until they are complete or `max_tokens` is reached; return the tokens then."""
    shortest_first, oldest_first = iter(sorted(indexes, key=left.__getitem__)), iter(indexes)
    shortest, oldest = next(shortest_first, None), next(oldest_first, None)
    while shortest is not None and oldest is not None and computed < max_tokens:
        preferred = oldest if left[oldest] <= left[shortest] else shortest
        if preferred == oldest:
            tokens = min(max_tokens - computed, left[preferred])
            left[preferred] -= tokens
        else:
            rest = 1 - OLDEST_PROMPT_BUDGET_SHARE
            tokens = min(max_tokens - computed, left[preferred] / rest, left[oldest] / OLDEST_PROMPT_BUDGET_SHARE)
            left[preferred] -= rest * tokens
            left[oldest] -= OLDEST_PROMPT_BUDGET_SHARE * tokens
        computed += tokens
        for each in (preferred, oldest):
            if left[each] < MIN_LEFT_TOKENS and found[each] == inf:
                left[each], found[each] = 0.0, computed
        while shortest is not None and found[shortest] < inf:
            shortest = next(shortest_first, None)
        while oldest is not None and found[oldest] < inf:
            oldest = next(oldest_first, None)
    return computed
