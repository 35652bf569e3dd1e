"""Measures the limits of the machine: the bandwidth of reading a step's bytes, and the rate of multiplications."""

from collections.abc import Callable
from pathlib import Path

import torch

from engine_bench.cells import BenchCell
from engine_bench.drivers.protocol import DriverSetup, MachineCeilings, serve
from engine_bench.roofline import cell_work, read_shape
from penstock.proofs.engine.throughput import best_time_s, read_bandwidth

_MATRIX_SIDE = 2048


def load(setup: DriverSetup) -> Callable[[BenchCell], MachineCeilings]:
    torch.set_num_threads(setup.threads)
    shape, dtype = read_shape(Path(setup.model)), getattr(torch, setup.dtype)

    def measure(cell: BenchCell) -> MachineCeilings:
        bytes_read = cell_work(shape, setup.dtype, cell).bytes_read
        return MachineCeilings(read_bandwidth(bytes_read, setup.threads), flop_rate(dtype, _MATRIX_SIDE))

    return measure


def flop_rate(dtype: torch.dtype, side: int, device: str = "cpu") -> float:
    """Return the flops/s of a product of two square matrices."""
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    return 2 * side**3 / best_time_s(lambda: left @ right)


if __name__ == "__main__":
    serve(load)
