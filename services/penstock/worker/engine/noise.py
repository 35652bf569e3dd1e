"""Randomness without state: the noise of a token is a function of (seed, position, token id) and of nothing else.

So batch mates, preemption and resume cannot change a text, and any subset of tokens may be drawn from in any order.
"""

from torch import Tensor

from penstock.worker.engine.mixing import MASK64, mix64

_MULTIPLIERS = (0x7FEB352D, -0x7B935975)  # of "lowbias32", Wellons 2018; the second is 0x846CA68B as int32


def noise_key(seed: int, position: int) -> int:
    """64 bits that all noise of one token's draw follows from."""
    return mix64(mix64(seed & MASK64) ^ position)


def gumbel_noise(key: int, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of the shape of `token_ids` (int32), float32: argmax(logits + noise) draws from softmax."""
    bits = _mixed(_mixed(token_ids ^ _int32(key & 0xFFFFFFFF)) + _int32(key >> 32))
    # 23 bits and a half: exact in float32, never 0 and never 1, so that neither logarithm is infinite.
    uniform = _shift_right(bits, 9).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def _mixed(x: Tensor) -> Tensor:
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
