"""The roofline of a decode step: the least time for the bytes that it reads and the products that it computes.

Source: Williams, Waterman, Patterson 2009 (Roofline), with memory and arithmetic overlapping fully.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from penstock.worker.engine.torch.weights import ModelShape

MATRIX_COLUMNS = 1024
REPEATS = 7


@dataclass(frozen=True, slots=True)
class StepWork:
    bytes_read: int  # every matrix once, and the K and V of every position
    flops: int  # two for each weight and row; those of attention are negligible


def step_work(shape: ModelShape, dtype: torch.dtype, batch: int, context: int) -> StepWork:
    """Return the work of a decode step of `batch` sequences that read `context` positions each.

    The head counts as a matrix. An embedding that is not the head is a lookup of one row per sequence: not counted.
    """
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = shape.dim * (2 * q + 2 * kv + 3 * shape.hidden)
    weights = shape.layers * layer + shape.vocab_size * shape.dim
    bytes_read = weights * dtype.itemsize + batch * context * shape.kv_bytes_per_token(dtype)
    return StepWork(bytes_read=bytes_read, flops=2 * weights * batch)


def roofline_s(work: StepWork, *, bytes_per_s: float, flops_per_s: float = float("inf")) -> float:
    return max(work.bytes_read / bytes_per_s, work.flops / flops_per_s)


def read_bandwidth(size: int, threads: int, device: str = "cpu") -> float:
    """Return bytes/s over `size` bytes: by a matrix-vector product or a sum, whichever is faster on this machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        matrix = torch.ones(size // (4 * MATRIX_COLUMNS) + 1, MATRIX_COLUMNS, device=device)
        vector = torch.ones(MATRIX_COLUMNS, device=device)
        return matrix.nbytes / min(best_time_s(lambda: torch.mv(matrix, vector)), best_time_s(matrix.sum))
    finally:
        torch.set_num_threads(before)


def best_time_s(call: Callable[[], torch.Tensor], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        if call().is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
