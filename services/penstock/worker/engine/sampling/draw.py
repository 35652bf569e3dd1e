"""The draw of one row's token: penalties, then the allowed ids, then temperature, truncation and noise.

Tokens are drawn by the Gumbel-max trick instead of inverting cumulative probabilities. Rounding that differs between
batches shifts every later boundary of a cumulative sum, but changes an argmax only if two scores are nearly equal.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.worker.engine.interface import SamplingParams
from penstock.worker.engine.sampling.gumbel import MAX_GUMBEL_NOISE, gumbel_noise, noise_key

MIN_TEMPERATURE = 1e-5  # below it scores would exceed float32; such a draw is greedy except for ties

Scores = NDArray[np.float32]  # [candidates]
Ids = NDArray[np.uint32]  # [candidates]


class RowDraw(NamedTuple):
    """The parameters of one row's draw, the tokens before it, and the tokens that may follow."""

    params: SamplingParams
    seed: int
    ids: Sequence[int]
    prompt_tokens: int  # leading `ids` that are not output
    allowed: Sequence[int] | NDArray[np.bool_] | None = None  # token ids, ascending, or a flag for each id; None: all

    @property
    def key(self) -> int:
        return noise_key(self.seed, len(self.ids))

    @property
    def is_adjusted(self) -> bool:
        """Whether penalties or a constraint change the model's own logits."""
        return self.allowed is not None or bool(self.params.logit_bias) or self.counts_tokens

    @property
    def counts_tokens(self) -> bool:
        """Whether penalties depend on the tokens before this one."""
        params = self.params
        return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty not in {0.0, 1.0})


def draw_token(logits: Scores, draw: RowDraw) -> int:
    """Return the token of one row."""
    scores, ids = _penalised(logits, draw), _all_ids(len(logits))
    if isinstance(draw.allowed, np.ndarray):
        scores = np.where(draw.allowed, scores, np.float32(-np.inf))
    elif draw.allowed is not None:
        ids = np.array(draw.allowed, dtype=np.uint32)
        scores = scores[ids]
    best = int(scores.argmax())
    # The logits of a broken model may be NaN, which do not compare; then any token will do.
    if draw.params.temperature == 0 or not np.isfinite(scores[best]):
        return int(ids[best])
    scores = scores / np.float32(max(draw.params.temperature, MIN_TEMPERATURE))
    kept = _kept(scores, ids, draw)
    return int(ids[kept[(scores[kept] + gumbel_noise(draw.key, ids[kept])).argmax()]])


@cache
def _all_ids(vocab_size: int) -> Ids:
    return np.arange(vocab_size, dtype=np.uint32)


def _penalised(logits: Scores, draw: RowDraw) -> Scores:
    """Return logits after penalties and biases, or the same array if there are none.

    Repetition: CTRL, Keskar et al. 2019, section 4.1.
    """
    params = draw.params
    if not (draw.counts_tokens or params.logit_bias):
        return logits
    scores = logits.copy()
    if params.repetition_penalty not in {0.0, 1.0}:
        seen = np.array(draw.ids)  # a repeated id is written twice with the same value
        values, penalty = logits[seen], np.float32(params.repetition_penalty)
        scores[seen] = np.where(values > 0, values / penalty, values * penalty)
    output = draw.ids[draw.prompt_tokens :]
    if output and (params.presence_penalty or params.frequency_penalty):
        seen, counts = np.unique(np.array(output), return_counts=True)
        scores[seen] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    for token, bias in params.logit_bias:
        scores[token] += np.float32(bias)
    return scores


def _kept(scores: Scores, ids: Ids, draw: RowDraw) -> NDArray[np.intp]:
    """Return the indexes in `scores` to draw from: those left by truncation, or those that noise can make the best."""
    params, best = draw.params, scores.argmax()
    if params.top_k == 0 and params.top_p == 1.0:
        if params.min_p > 0:
            return np.flatnonzero(scores >= scores[best] + np.float32(math.log(params.min_p)))
        to_beat = scores[best] + gumbel_noise(draw.key, ids[best : best + 1])[0]
        return np.flatnonzero(scores >= to_beat - np.float32(MAX_GUMBEL_NOISE))
    head = _head(scores, params)
    if params.min_p > 0:
        head = head[scores[head] >= scores[best] + np.float32(math.log(params.min_p))]
    return head


def _head(scores: Scores, params: SamplingParams) -> NDArray[np.intp]:
    """Return the indexes left by top-k and then, after renormalizing, by top-p, the likeliest first."""
    count = len(scores)
    if 0 < params.top_k < count:
        head = np.flatnonzero(scores >= np.partition(scores, count - params.top_k)[count - params.top_k])
        head = _descending(scores, head)[: params.top_k]
        return head[: _nucleus(scores[head], params.top_p)]
    weights = np.exp(scores - scores.max())
    total = float(weights.sum())
    # All tokens below this share have less than 1 - top_p together, so no token of the nucleus is below it.
    head = _descending(scores, np.flatnonzero(weights >= total * (1 - params.top_p) / count))
    return head[: _nucleus(scores[head], params.top_p, total)]


def _descending(scores: Scores, indexes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return `indexes` by score, the likeliest first, equal ones by id."""
    return indexes[np.argsort(-scores[indexes], kind="stable")]


def _nucleus(scores: Scores, top_p: float, total: float | None = None) -> int:
    """Return the number of likeliest tokens whose predecessors' mass is below top_p; at least 1.

    scores: descending. total: mass of all candidates, in units of the first one's; None: the mass of `scores`.
    """
    if top_p == 1.0:
        return len(scores)
    mass = np.exp(scores - scores[0]).cumsum(dtype=np.float64)
    return int(np.searchsorted(mass, top_p * (mass[-1] if total is None else total))) + 1
