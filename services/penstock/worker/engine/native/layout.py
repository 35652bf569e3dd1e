"""How the native forward wants its weights: in panels of sixteen outputs, padded so that no loop knows of edges."""

import mmap
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

LANES = 16  # outputs of a panel
OUTPUTS = 32  # outputs are padded to a multiple of this
INPUTS = 32  # and inputs to one of this


class Arena:
    """Zeroed memory for as long as it lives, which the system gives as it is first written.

    In few large pieces and thus in large pages where there are such: weights are read in long runs, and looking up
    their small pages took a tenth of a decode step.
    """

    _PIECE = 1 << 28  # bytes
    _ALIGNMENT = 64  # bytes

    def __init__(self) -> None:
        self._piece = mmap.mmap(-1, self._ALIGNMENT)
        self._used = self._ALIGNMENT

    def zeros(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = prod(size)
        taken = -(-count * dtype.itemsize // self._ALIGNMENT) * self._ALIGNMENT
        if self._used + taken > len(self._piece):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared pages, the default, are never large
            self._piece = mmap.mmap(-1, max(taken, self._PIECE), flags=flags)
            self._piece.madvise(mmap.MADV_HUGEPAGE)
            self._used = 0
        offset, self._used = self._used, self._used + taken
        return torch.frombuffer(self._piece, dtype=dtype, count=count, offset=offset).view(size)


def pack(weight: Tensor) -> Tensor:
    """View [outputs, inputs] as [outputs / 16, inputs / pair, 16, pair]; a pair of elements fills 32 bits."""
    pair = 4 // weight.element_size()
    outputs, inputs = weight.shape
    padded = pad(weight, (0, -inputs % INPUTS, 0, -outputs % OUTPUTS))
    return padded.view(-1, LANES, padded.shape[1] // pair, pair).transpose(1, 2)


def pack_alternating(gate_up: Tensor) -> Tensor:
    """Pack two matrices of one shape, stacked, so that panels of the first and of the second alternate."""
    hidden = gate_up.shape[0] // 2
    gate, up = (pad(half, (0, 0, 0, -hidden % LANES)) for half in (gate_up[:hidden], gate_up[hidden:]))
    both = torch.stack([gate.view(-1, LANES, gate.shape[1]), up.view(-1, LANES, up.shape[1])], dim=1)
    return pack(both.flatten(0, 2))


def padded_bias(bias: Tensor) -> Tensor:
    return pad(bias.float(), (0, -len(bias) % OUTPUTS)).contiguous()
