"""The sampler on a GPU without our kernels, in plain torch: all rows at once, as launches cost more than arithmetic.

It draws the same tokens as the sampler for CPUs, except where rounding decides. Rows with penalties or a constraint are
copied to the CPU. Without such rows and without logprobs, it waits for the GPU once, for the tokens.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.worker.engine.sampling.draw import MIN_TEMPERATURE, RowDraw, draw_token

_MULTIPLIERS = (0x7FEB352D, -0x7B935975)  # those of `gumbel`; the second is 0x846CA68B as int32


def sample_batch(logits: Tensor, draws: Sequence[RowDraw]) -> tuple[list[int], list[float]]:
    """Like `sampler.sample`. logits: [rows, vocab_size] float32, on any device"""
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
    """Return token ids, [rows] int64. scores: [rows, vocab_size]"""
    params = [draw.params for draw in draws]
    scores = scores / _column(scores, [max(each.temperature, MIN_TEMPERATURE) for each in params])
    ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    if any(each.top_k > 0 or each.top_p < 1.0 for each in params):
        scores, ids = scores.sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(scores.shape[1], device=scores.device)
        scores.masked_fill_(ranks >= _column(scores, [each.top_k or math.inf for each in params]), -torch.inf)
        weights = scores.softmax(-1)
        before = weights.cumsum(-1) - weights
        # Rounding may take the mass to 1 before the end, which must not truncate rows without top_p.
        scores.masked_fill_(
            before >= _column(scores, [each.top_p if each.top_p < 1.0 else 2.0 for each in params]), -torch.inf
        )
    shares = _column(scores, [math.log(each.min_p) if each.min_p > 0 else -math.inf for each in params])
    scores = scores.masked_fill(scores < scores.amax(dim=-1, keepdim=True) + shares, -torch.inf)
    indexes = (scores + gumbel_noise([draw.key for draw in draws], ids.int())).argmax(dim=-1, keepdim=True)
    return ids.gather(1, indexes)[:, 0]


def gumbel_noise(keys: Sequence[int], ids: Tensor) -> Tensor:
    """`gumbel.gumbel_noise` of each row's key. ids: [rows, candidates] int32"""
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
    """Shift without copying the sign bit, as torch's own shift would."""
    return (x >> places).bitwise_and_(0xFFFFFFFF >> places)


def _int32(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    return _to_device(values, torch.float32, like.device)[:, None]


def _to_device(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy from pinned memory, because a copy from other memory would wait for all queued work of the GPU."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _logprobs(logits: Tensor, chosen: Tensor, draws: Sequence[RowDraw]) -> list[float]:
    logprobs = [0.0] * len(draws)
    requested = [row for row, draw in enumerate(draws) if draw.params.logprobs]
    if requested:
        indexes = _to_device(requested, torch.int64, logits.device)
        rows = logits.index_select(0, indexes)
        values = rows.gather(1, chosen.index_select(0, indexes)[:, None])[:, 0] - rows.logsumexp(dim=-1)
        for row, value in zip(requested, values.tolist(), strict=True):
            logprobs[row] = value
    return logprobs
