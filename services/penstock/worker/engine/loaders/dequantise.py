"""From ggml's blocks of quantised values to numbers, in slices that stay in a core's cache.

Q4_0, Q4_1 and Q8_0 are done here, straight into the memory that the model will use and with torch's threads; gguf-py
does the other kinds, at a tenth of the speed. A block is 32 values. Source: ggml's reference dequantisation.
"""

from collections.abc import Callable

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.gguf_file import GgufFile, Stored

_SLICE = 8_192  # blocks; 1 MiB of float32
_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def fill(out: Tensor, file: GgufFile, stored: Stored) -> None:
    """Read one tensor into `out`, of its shape, any float dtype, any device. Raises ModelUnsupported."""
    try:
        kind = GGMLQuantizationType(stored.kind)
        raw = _raw(file, stored, kind)
    except ValueError as error:
        raise ModelUnsupported(f"{file.path.name} cannot be read at tensor {stored.name}: {error}") from error
    if kind in _PLAIN:
        out.copy_(raw.view(_PLAIN[kind]).view(out.shape))
    elif kind in _UNPACK and out.is_contiguous():
        _fill_blocks(out.view(-1, 32), raw.view(-1, GGML_QUANT_SIZES[kind][1]), _UNPACK[kind])
    else:
        rows = raw.view(*stored.shape[:-1], -1).numpy()
        out.copy_(torch.from_numpy(dequantize(rows, kind)))


def _raw(file: GgufFile, stored: Stored, kind: GGMLQuantizationType) -> Tensor:
    """The tensor's bytes, mapped. Raises ValueError when the file ends before they do."""
    block, size = GGML_QUANT_SIZES[kind]
    count = torch.Size(stored.shape).numel() // block * size
    return torch.frombuffer(file.bytes, dtype=torch.uint8, count=count, offset=stored.offset)


def _fill_blocks(out: Tensor, blocks: Tensor, unpack: Callable[[Tensor], Tensor]) -> None:
    """out: [blocks, 32]; blocks: [blocks, bytes of one]."""
    for start in range(0, len(blocks), _SLICE):
        end = start + _SLICE
        out[start:end] = unpack(blocks[start:end])


def _halves(blocks: Tensor, start: int) -> Tensor:
    """The float16 at byte `start` of each block: [blocks, 1] float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Low halves of a block's 16 bytes, then the high ones. packed: [blocks, 16]; returns [blocks, 32] float32."""
    packed = packed.contiguous()  # torch's bit operations take ten times as long over strides
    values = torch.empty(len(packed), 32)
    values[:, :16] = packed & 0x0F
    values[:, 16:] = packed >> 4
    return values


def _q4_0(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 2:]).sub_(8).mul_(_halves(blocks, 0))


def _q4_1(blocks: Tensor) -> Tensor:
    return _nibbles(blocks[:, 4:]).mul_(_halves(blocks, 0)).add_(_halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_halves(blocks, 0))


_UNPACK: dict[GGMLQuantizationType, Callable[[Tensor], Tensor]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}
