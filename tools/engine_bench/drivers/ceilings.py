"""Measures what the machine can do: how fast it reads as many bytes as a step reads, how fast it multiplies."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine_bench.cells import Cell
from engine_bench.drivers.protocol import Ceilings, Setup, serve
from engine_bench.roofline import read_config, step_work

_COLUMNS = 1024
_REPEATS = 7
_SIDE = 2048  # of the matrices multiplied


def load(setup: Setup) -> Callable[[Cell], Ceilings]:
    torch.set_num_threads(setup.threads)
    config = read_config(Path(setup.model))
    dtype = getattr(torch, setup.dtype)
    return lambda cell: Ceilings(_read_rate(step_work(config, setup.dtype, cell).read), _multiply_rate(dtype))


def _read_rate(size: int) -> float:
    """Bytes/s over `size` bytes: a matrix times a vector, or a sum, whichever this machine does faster."""
    matrix = torch.ones(size // (4 * _COLUMNS) + 1, _COLUMNS)
    vector = torch.ones(_COLUMNS)
    return matrix.nbytes / min(_best(lambda: torch.mv(matrix, vector)), _best(matrix.sum))


def _multiply_rate(dtype: torch.dtype) -> float:
    left, right = torch.ones(_SIDE, _SIDE, dtype=dtype), torch.ones(_SIDE, _SIDE, dtype=dtype)
    return 2 * _SIDE**3 / _best(lambda: left @ right)


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    serve(load)
