"""From logits to tokens, for all rows of a step at once. A row's token depends on that row alone.

Tokens are drawn by the Gumbel-max trick rather than by inverting the cumulated probabilities: rounding that differs
between batches shifts every later border of a cumulated sum, but changes an argmax only where two scores all but tie.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.worker.interface import SamplingParams
from penstock.worker.noise import gumbel_noise

_HEAD = 1024  # likeliest tokens looked at first when truncating; a full sort only where they do not suffice


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
    drawn = [row for row, draw in enumerate(draws) if draw.params.temperature > 0]
    if drawn:
        chosen[drawn] = _draw(scores[drawn], [draws[row] for row in drawn])
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


def _draw(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Draw a token of each row at its temperature. scores: [rows, vocab_size]; returns [rows] int64."""
    temperatures = torch.tensor([draw.params.temperature for draw in draws], device=scores.device)
    scores = scores / temperatures[:, None]
    floors = _floors(scores, draws)
    noise = gumbel_noise(
        [draw.seed for draw in draws], [draw.position for draw in draws], scores.shape[1], scores.device
    )
    return (scores + noise).masked_fill_(scores < floors[:, None], -torch.inf).argmax(dim=-1)


def _floors(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Least score that each row may still draw: [rows]. Tokens that tie with it stay in."""
    min_p = torch.tensor([draw.params.min_p for draw in draws], device=scores.device)
    floors = scores.amax(dim=-1) + min_p.log()  # log 0 is -inf: all stay
    cut = [row for row, draw in enumerate(draws) if draw.params.top_k > 0 or draw.params.top_p < 1.0]
    if cut:
        floors[cut] = torch.maximum(floors[cut], _truncated(scores[cut], [draws[row].params for row in cut]))
    return floors


def _truncated(scores: Tensor, params: Sequence[SamplingParams], width: int = _HEAD) -> Tensor:
    """Least score kept by top-k and then top-p of what it left, renormalised. [rows, vocab_size] to [rows]."""
    vocab_size = scores.shape[1]
    width = min(width, vocab_size)
    top_k = torch.tensor([min(each.top_k or vocab_size, vocab_size) for each in params], device=scores.device)[:, None]
    top_p = torch.tensor([each.top_p for each in params], device=scores.device)[:, None]
    ordered = scores.topk(width, dim=-1).values
    kept = ordered.masked_fill(torch.arange(width, device=scores.device) >= top_k, -torch.inf)
    total = torch.where(top_k <= width, kept.logsumexp(-1, keepdim=True), scores.logsumexp(-1, keepdim=True))
    mass = (kept - total).exp().cumsum(dim=-1)
    enough = (mass[:, -1:] >= top_p) | (top_k <= width)
    if width < vocab_size and not enough.all():
        return _truncated(scores, params, vocab_size)
    # As many as it takes for the mass before the last one to stay below top_p: at least one.
    count = torch.minimum((mass < top_p).sum(dim=-1, keepdim=True) + 1, top_k).clamp_(max=width)
    return ordered.gather(1, count - 1)[:, 0]
