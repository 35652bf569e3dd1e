"""The sampler: draws a token for each row of a step. A row's token depends on that row alone.

On a CPU it works row by row in numpy: at the size of a vocabulary, numpy's argmax is over twenty times as fast as
torch's, a call costs a fraction, and the temporaries of a row stay in the cache.
"""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from penstock.worker.engine.sampling.draw import RowDraw, Scores, draw_token
from penstock.worker.engine.sampling.sampler_torch import sample_batch


def sample(logits: Tensor, draws: Sequence[RowDraw]) -> tuple[list[int], list[float]]:
    """Return the token of each row, and its log probability before penalties and truncation if requested (else 0).

    logits: [rows, vocab_size] float32
    """
    if logits.is_cuda:
        return sample_batch(logits, draws)
    rows = logits.numpy()
    tokens: list[int] = rows.argmax(axis=1).tolist()
    for row, draw in enumerate(draws):
        if draw.params.temperature > 0 or draw.is_adjusted:
            tokens[row] = draw_token(rows[row], draw)
    return tokens, [
        logprob(scores, token) if draw.params.logprobs else 0.0
        for scores, token, draw in zip(rows, tokens, draws, strict=True)
    ]


def logprob(logits: Scores, token: int) -> float:
    best = logits.max()
    return float(logits[token] - best) - math.log(float(np.exp(logits - best).sum()))
