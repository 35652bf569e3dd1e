"""The sampler on a GPU: all rows in one set of kernels, as each launch costs more than a row's arithmetic.

The same tokens as row by row, but where rounding decides. Rows with penalties or with only some tokens allowed
come to the CPU, alone. Without such rows and without logprobs it waits for the GPU once, for the tokens.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.worker.engine.sampling.draw import MIN_TEMPERATURE, RowDraw, draw_token

_MULTIPLIERS = (0x7FEB352D, -0x7B935975)  # those of `noise`; the second is 0x846CA68B as int32


def sample_batch(logits: Tensor, draws: Sequence[RowDraw]) -> tuple[list[int], list[float]]:
    """As `sample`. logits: [rows, vocab_size] float32, on any device"""
    chosen = logits.argmax(dim=-1)
    drawn = [row for row, draw in enumerate(draws) if draw.params.temperature > 0 and not draw.is_adjusted]
    if len(drawn) == len(draws):
        chosen = _draw(logits, draws)
    elif drawn:
        rows = _to_device(drawn, torch.int64, logits.device)
        chosen.index_copy_(0, rows, _draw(logits.index_select(0, rows), [draws[row] for row in drawn]))
    for row, draw in enumerate(draws):
        if draw.is_adjusted:
            chosen[row] = draw_token(logits[row].cpu().numpy(), draw)
    return chosen.tolist(), _logprobs(logits, chosen, draws)


def _draw(scores: Tensor, draws: Sequence[RowDraw]) -> Tensor:
    """Token ids, [rows] int64. scores: [rows, vocab_size]"""
    params = [draw.params for draw in draws]
    scores = scores / _column(scores, [max(each.temperature, MIN_TEMPERATURE) for each in params])
    ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    if any(each.top_k > 0 or each.top_p < 1.0 for each in params):
        scores, ids = scores.sort(dim=-1, descending=True, stable=True)
        places = torch.arange(scores.shape[1], device=scores.device)
        scores.masked_fill_(places >= _column(scores, [each.top_k or math.inf for each in params]), -torch.inf)
        weights = scores.softmax(-1)
        before = weights.cumsum(-1) - weights
        # Rounding may take the mass up to 1 before the end: who does not truncate loses nothing by it.
        scores.masked_fill_(
            before >= _column(scores, [each.top_p if each.top_p < 1.0 else 2.0 for each in params]), -torch.inf
        )
    shares = _column(scores, [math.log(each.min_p) if each.min_p > 0 else -math.inf for each in params])
    scores = scores.masked_fill(scores < scores.amax(dim=-1, keepdim=True) + shares, -torch.inf)
    places = (scores + gumbel_noise([draw.key for draw in draws], ids.int())).argmax(dim=-1, keepdim=True)
    return ids.gather(1, places)[:, 0]


def gumbel_noise(keys: Sequence[int], ids: Tensor) -> Tensor:
    """`noise.gumbel_noise` of each row's key. ids: [rows, candidates] int32"""
    low, high = (
        _to_device([_int32(key >> shift & 0xFFFFFFFF) for key in keys], torch.int32, ids.device) for shift in (0, 32)
    )
    bits = _mix(_mix(ids ^ low[:, None]) + high[:, None])
    uniform = _shift_right(bits, 9).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _mix(x: Tensor) -> Tensor:
    """Mix int32 values in place; products wrap."""
    x ^= _shift_right(x, 16)
    x *= _MULTIPLIERS[0]
    x ^= _shift_right(x, 15)
    x *= _MULTIPLIERS[1]
    x ^= _shift_right(x, 16)
    return x


def _shift_right(x: Tensor, places: int) -> Tensor:
    """Logical shift: torch's own copies the sign bit."""
    return (x >> places).bitwise_and_(0xFFFFFFFF >> places)


def _int32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return _to_device(values, torch.float32, like.device)[:, None]


def _to_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """From memory that the GPU copies from by itself: from any other, the copy would wait for all it has to do."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _logprobs(logits: Tensor, chosen: Tensor, draws: Sequence[RowDraw]) -> list[float]:
    logprobs = [0.0] * len(draws)
    asked = [row for row, draw in enumerate(draws) if draw.params.logprobs]
    if asked:
        places = _to_device(asked, torch.int64, logits.device)
        rows = logits.index_select(0, places)
        values = rows.gather(1, chosen.index_select(0, places)[:, None])[:, 0] - rows.logsumexp(dim=-1)
        for row, value in zip(asked, values.tolist(), strict=True):
            logprobs[row] = value
    return logprobs
