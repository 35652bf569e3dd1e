"""The memory of the block pool: K and V of every position and layer, allocated once."""

from math import prod
from mmap import mmap
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.worker.engine.torch.weights import ModelShape


class LayerKv(NamedTuple):
    """One layer's K and V: [blocks, block_size, kv_heads, head_size] each."""

    k: Tensor
    v: Tensor

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write each row's K and V, [rows, kv_heads, head_size], to its slot, block * block_size + offset."""
        self.k.flatten(0, 1).index_copy_(0, slots, k)
        self.v.flatten(0, 1).index_copy_(0, slots, v)


def allocate_kv(
    shape: ModelShape, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[LayerKv]:
    size = (2, blocks, block_size, shape.kv_heads, shape.head_size)
    return [LayerKv(*_zeros(size, dtype, device)) for _ in range(shape.layers)]


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate zeros, because padded rows of a gather read slots that were never written, and 0 * NaN would be NaN.

    On a CPU the system provides memory at the first write, so the unused part of a large pool costs no memory.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.frombuffer(mmap(-1, prod(size) * dtype.itemsize), dtype=dtype).view(size)


def blocks_that_fit(kv_bytes: int, shape: ModelShape, block_size: int, dtype: torch.dtype) -> int:
    """Return the number of KV blocks that fit into `kv_bytes`. Raises ValueError if none does."""
    block_bytes = block_size * shape.kv_bytes_per_token(dtype)
    if kv_bytes < block_bytes:
        raise ValueError(f"{kv_bytes} bytes of KV memory hold no block of {block_bytes} bytes; set kv_bytes higher")
    return kv_bytes // block_bytes
