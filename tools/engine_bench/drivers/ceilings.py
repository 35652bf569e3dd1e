"""Measures what the machine can do: how fast it reads as many bytes as a step reads, how fast it multiplies."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine_bench.cells import BenchCell
from engine_bench.drivers.protocol import DriverSetup, MachineCeilings, serve
from engine_bench.roofline import read_config, step_work

_MATRIX_COLUMNS = 1024
_REPEATS = 7
_MATRIX_SIDE = 2048  # of the matrices multiplied


def load(setup: DriverSetup) -> Callable[[BenchCell], MachineCeilings]:
    torch.set_num_threads(setup.threads)
    config = read_config(Path(setup.model))
    dtype = getattr(torch, setup.dtype)
    return lambda cell: MachineCeilings(
        _read_bandwidth(step_work(config, setup.dtype, cell).bytes_read), _flop_rate(dtype)
    )


def _read_bandwidth(size: int) -> float:
    """Bytes/s over `size` bytes: a matrix times a vector, or a sum, whichever this machine does faster."""
    matrix = torch.ones(size // (4 * _MATRIX_COLUMNS) + 1, _MATRIX_COLUMNS)
    vector = torch.ones(_MATRIX_COLUMNS)
    return matrix.nbytes / min(_best_time(lambda: torch.mv(matrix, vector)), _best_time(matrix.sum))


def _flop_rate(dtype: torch.dtype) -> float:
    left, right = (
        torch.ones(_MATRIX_SIDE, _MATRIX_SIDE, dtype=dtype),
        torch.ones(_MATRIX_SIDE, _MATRIX_SIDE, dtype=dtype),
    )
    return 2 * _MATRIX_SIDE**3 / _best_time(lambda: left @ right)


def _best_time(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    serve(load)
