"""The likeliest tokens of the rows that request them, by the model's own distribution, on any device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.worker.engine.interface import LikeliestTokens
from penstock.worker.engine.sampling.draw import RowDraw


def likeliest_tokens(logits: Tensor, draws: Sequence[RowDraw]) -> dict[int, LikeliestTokens]:
    """Return the `top_logprobs` likeliest tokens of each row that requests any, by row.

    It waits for a GPU once if any row does. logits: [rows, vocab_size] float32
    """
    rows = [row for row, draw in enumerate(draws) if draw.params.top_logprobs]
    if not rows:
        return {}
    requested = logits[rows]
    values, ids = requested.topk(max(draws[row].params.top_logprobs for row in rows), dim=-1)
    logprobs = values - requested.logsumexp(dim=-1, keepdim=True)
    both = torch.stack((logprobs.double(), ids.double()))  # for one copy from a GPU; float64 has each id exactly
    row_logprobs, row_ids = both.tolist()
    found = {}
    for place, row in enumerate(rows):
        count = draws[row].params.top_logprobs
        found[row] = LikeliestTokens(list(map(int, row_ids[place][:count])), row_logprobs[place][:count])
    return found
