"""From logits to tokens, for all rows of a step at once. A row's token depends on that row alone.

Tokens are drawn by the Gumbel-max trick rather than by inverting the cumulated probabilities: rounding that differs
between batches shifts every later border of a cumulated sum, but changes an argmax only where two scores all but tie.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.worker.engine.interface import SamplingParams
from penstock.worker.engine.noise import gumbel_noise, noise_key

_HEAD = 256  # likeliest tokens looked at first where a row truncates; more only where they do not suffice


class Draw(NamedTuple):
    """One row's draw: how, and the tokens before it."""

    params: SamplingParams
    seed: int
    ids: Sequence[int]
    prompt_tokens: int  # leading `ids` that are not output

    @property
    def position(self) -> int:
        return len(self.ids)


def sample(logits: Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """Token of each row, and the logarithm of its probability before penalties and truncation where asked for (else 0).

    logits: [rows, vocab_size] float32
    """
    scores = _adjusted(logits, draws)
    chosen = scores.argmax(dim=-1)
    ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    # Row by row: a row's temporaries stay in the cache, those of all rows would each be fresh memory.
    for row, draw in enumerate(draws):
        if draw.params.temperature > 0:
            chosen[row] = _draw(scores[row], ids, draw)
    return chosen.tolist(), _logprobs(logits, chosen, draws)


def _logprobs(logits: Tensor, chosen: Tensor, draws: Sequence[Draw]) -> list[float]:
    logprobs = [0.0] * len(draws)
    asked = [row for row, draw in enumerate(draws) if draw.params.logprobs]
    if asked:
        rows = logits[asked]
        values = rows.gather(1, chosen[asked, None])[:, 0] - rows.logsumexp(dim=-1)
        for row, value in zip(asked, values.tolist(), strict=True):
            logprobs[row] = value
    return logprobs


def _adjusted(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits after penalties and biases; the same tensor where no row has any."""
    adjusted = [row for row, draw in enumerate(draws) if _adjusts(draw.params)]
    if not adjusted:
        return logits
    scores = logits.clone()
    for row in adjusted:
        _adjust(scores[row], draws[row])
    return scores


def _adjusts(params: SamplingParams) -> bool:
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty not in {0.0, 1.0}
        or params.logit_bias
    )


def _adjust(scores: Tensor, draw: Draw) -> None:
    """Penalise one row in place. scores: [vocab_size]. Repetition: CTRL, Keskar et al. 2019, section 4.1."""
    params = draw.params
    if params.repetition_penalty not in {0.0, 1.0}:
        seen = torch.unique(torch.tensor(draw.ids, device=scores.device))
        values = scores[seen]
        scores[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    output = draw.ids[draw.prompt_tokens :]
    if output and (params.presence_penalty or params.frequency_penalty):
        seen, counts = torch.unique(torch.tensor(output, device=scores.device), return_counts=True)
        scores[seen] -= params.presence_penalty + params.frequency_penalty * counts
    for token, bias in params.logit_bias:
        scores[token] += bias


def _draw(scores: Tensor, ids: Tensor, draw: Draw) -> Tensor:
    """Draw one token: a scalar of `ids`. scores, ids: [vocab_size]."""
    params = draw.params
    scores = scores / params.temperature
    if params.top_k > 0 or params.top_p < 1.0:
        scores, ids = _head(scores, params)
    perturbed = scores + gumbel_noise(noise_key(draw.seed, draw.position), ids)
    if params.min_p > 0:
        perturbed.masked_fill_(scores < scores.max() + math.log(params.min_p), -torch.inf)
    return ids[perturbed.argmax()]


def _head(scores: Tensor, params: SamplingParams, width: int = _HEAD) -> tuple[Tensor, Tensor]:
    """Scores and ids (int32) of what top-k leaves, and of that what top-p leaves after renormalising.

    scores: [vocab_size]
    """
    vocab_size = len(scores)
    top_k = min(params.top_k or vocab_size, vocab_size)
    width = min(max(width, params.top_k), vocab_size)
    values, ids = scores.topk(min(width, top_k))
    mass = (values - (values if top_k <= width else scores).logsumexp(0)).exp().cumsum(0)
    if len(values) < top_k and mass[-1] < params.top_p:
        return _head(scores, params, width * 16)
    # As many as it takes for the mass before the last one to stay below top_p: at least one.
    count = int((mass < params.top_p).sum()) + 1
    return values[:count], ids[:count].int()
