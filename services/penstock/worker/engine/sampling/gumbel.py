"""Counter-based Gumbel noise: the noise of a token is a function of seed, position and token id alone.

Therefore batch mates, preemption and resume cannot change a text, and any subset of tokens can be drawn from in any
order.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.worker.engine.sampling.splitmix64 import MASK64, mix64

MAX_GUMBEL_NOISE = 16.7  # upper bound; the largest noise is that of 1 - 2**-24, which is 16.64
_MULTIPLIERS = (np.uint32(0x7FEB352D), np.uint32(0x846CA68B))  # of "lowbias32", Wellons 2018


def noise_key(seed: int, position: int) -> int:
    """Return the 64-bit key of all noise of one draw."""
    return mix64(mix64(seed & MASK64) ^ position)


def gumbel_noise(key: int, token_ids: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Standard Gumbel noise of the shape of `token_ids`: argmax(logits + noise) draws from softmax."""
    bits = _mix(token_ids ^ np.uint32(key & 0xFFFFFFFF))
    bits += np.uint32(key >> 32)
    # 23 bits plus one half: exact in float32, never 0 and never 1, so that neither logarithm is infinite.
    noise = (_mix(bits) >> np.uint32(9)).astype(np.float32)
    noise += np.float32(0.5)
    noise *= np.float32(2.0**-23)
    for _ in range(2):
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def _mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mix in place; products wrap."""
    x ^= x >> np.uint32(16)
    x *= _MULTIPLIERS[0]
    x ^= x >> np.uint32(15)
    x *= _MULTIPLIERS[1]
    x ^= x >> np.uint32(16)
    return x
