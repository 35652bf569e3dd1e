"""The layout of weights for the native forward pass: panels of 16 outputs, padded so that no loop has edge cases."""

import mmap
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import pad

PANEL_OUTPUTS = 16
OUTPUT_MULTIPLE = 32  # outputs are padded to a multiple of this
INPUT_MULTIPLE = 32  # inputs are padded to a multiple of this
_WORD_BYTES = 4


class Arena:
    """Zeroed memory, which the system provides at the first write.

    It is allocated in few large chunks, and thus in huge pages where available: weights are read sequentially, and the
    lookup of small pages took a tenth of a decode step.
    """

    _CHUNK_BYTES = 1 << 28
    _ALIGNMENT_BYTES = 64

    def __init__(self) -> None:
        self._chunk = mmap.mmap(-1, self._ALIGNMENT_BYTES)
        self._used = self._ALIGNMENT_BYTES

    def zeros(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = prod(size)
        taken = -(-count * dtype.itemsize // self._ALIGNMENT_BYTES) * self._ALIGNMENT_BYTES
        if self._used + taken > len(self._chunk):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared pages, the default, are never large
            self._chunk = mmap.mmap(-1, max(taken, self._CHUNK_BYTES), flags=flags)
            self._chunk.madvise(mmap.MADV_HUGEPAGE)
            self._used = 0
        offset, self._used = self._used, self._used + taken
        return torch.frombuffer(self._chunk, dtype=dtype, count=count, offset=offset).view(size)


def packed_size(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Return the packed size: panels, words along the inputs, and outputs of a panel."""
    return (
        -(-outputs // OUTPUT_MULTIPLE) * OUTPUT_MULTIPLE // PANEL_OUTPUTS,
        -(-inputs // INPUT_MULTIPLE) * INPUT_MULTIPLE * dtype.itemsize // _WORD_BYTES,
        PANEL_OUTPUTS,
    )


def pack(weight: Tensor, panels: Tensor) -> None:
    """Write a matrix [outputs, inputs] into zeroed panels [panels, words, 16] int32, which it may fill partly.

    A word is 32 bits along the inputs: one float32 or two bfloat16.
    """
    whole = weight if len(weight) % PANEL_OUTPUTS == 0 else pad(weight, (0, 0, 0, -len(weight) % PANEL_OUTPUTS))
    words = whole.view(torch.int32).view(-1, PANEL_OUTPUTS, whole.shape[1] * weight.itemsize // _WORD_BYTES)
    panels[: len(words), : words.shape[2]].copy_(words.transpose(1, 2))


def padded_bias(bias: Tensor) -> Tensor:
    return pad(bias.float(), (0, -len(bias) % OUTPUT_MULTIPLE)).contiguous()
