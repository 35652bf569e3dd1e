"""Randomness without state: the noise of a token is a function of (seed, position, token id) and of nothing else.

So batch mates, preemption and resume cannot change a text, and candidates may be drawn in any order and any subset.
"""

import torch
from torch import Tensor

from penstock.worker.mixing import MASK64, mix64

_MULTIPLIERS = (0x7FEB352D, -0x7B93_5975)  # of "lowbias32", Wellons 2018; the second is 0x846CA68B as int32


def gumbel_noise(seeds: list[int], positions: list[int], vocab_size: int, device: torch.device) -> Tensor:
    """Standard Gumbel noise, [len(seeds), vocab_size] float32: argmax(logits + noise) draws from softmax(logits)."""
    keys = [mix64(mix64(seed & MASK64) ^ position) for seed, position in zip(seeds, positions, strict=True)]
    low = _int32_column([key & 0xFFFFFFFF for key in keys], device)
    high = _int32_column([key >> 32 for key in keys], device)
    ids = torch.arange(vocab_size, dtype=torch.int32, device=device)
    bits = _hash32(_hash32(ids ^ low) + high)
    # 23 bits and a half: exact in float32, never 0 and never 1, so that neither logarithm is infinite.
    uniform = _shift_right(bits, 9).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _hash32(x: Tensor) -> Tensor:
    """Mix int32 values in place; products wrap."""
    x ^= _shift_right(x, 16)
    x *= _MULTIPLIERS[0]
    x ^= _shift_right(x, 15)
    x *= _MULTIPLIERS[1]
    x ^= _shift_right(x, 16)
    return x


def _shift_right(x: Tensor, places: int) -> Tensor:
    """Logical shift: torch's own copies the sign bit."""
    return (x >> places) & (0xFFFFFFFF >> places)


def _int32_column(values: list[int], device: torch.device) -> Tensor:
    signed = [value - (1 << 32) if value >> 31 else value for value in values]
    return torch.tensor(signed, dtype=torch.int32, device=device)[:, None]
