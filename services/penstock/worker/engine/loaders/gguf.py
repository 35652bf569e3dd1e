"""The loader of GGUF files, which dequantizes while reading. One file has weights, tokenizer and chat template.

Q4_0, Q4_1 and Q8_0 are dequantized here, directly into the model's memory and in slices that stay in a core's cache;
gguf-py does the other kinds at a tenth of the speed. A block has 32 values. Source: ggml's reference dequantization.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from penstock.worker.engine.loaders.cards import INTERLEAVED_ROPE, architecture_of, gguf_card
from penstock.worker.engine.loaders.checkpoint import Checkpoint, TensorSource
from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.gguf_file import GgufFile, StoredTensor
from penstock.worker.engine.torch.weights import ModelShape, rope_frequencies

# Fewer than torch splits between threads: on a machine with busy cores, each of thousands of short operations would
# wait for a thread that is not scheduled. It also lets malloc reuse the memory of a slice.
_SLICE_BLOCKS = 1_000
_Unpack: TypeAlias = Callable[[Tensor, Tensor], None]  # blocks [count, bytes of one] to float32 values [count, 32]
_UNQUANTISED_DTYPES = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def read_tensor(out: Tensor, file: GgufFile, stored: StoredTensor) -> None:
    """Read one tensor into `out`, of its shape, any float dtype, any device. Raises ModelUnsupported."""
    try:
        kind = GGMLQuantizationType(stored.kind)
        raw = _raw(file, stored, kind)
    except ValueError as error:
        raise ModelUnsupported(f"{file.path.name} cannot be read at tensor {stored.name}: {error}") from error
    if kind in _UNQUANTISED_DTYPES:
        out.copy_(raw.view(_UNQUANTISED_DTYPES[kind]).view(out.shape))
    elif kind in _UNPACKERS and out.is_contiguous():
        _fill_blocks(out.view(-1, 32), raw.view(-1, GGML_QUANT_SIZES[kind][1]), _UNPACKERS[kind])
    else:
        rows = raw.view(*stored.shape[:-1], -1).numpy()
        out.copy_(torch.from_numpy(dequantize(rows, kind)))


def _raw(file: GgufFile, stored: StoredTensor, kind: GGMLQuantizationType) -> Tensor:
    """Return the tensor's bytes, mapped. Raises ValueError if the file is too short."""
    block, size = GGML_QUANT_SIZES[kind]
    count = torch.Size(stored.shape).numel() // block * size
    return torch.frombuffer(file.bytes, dtype=torch.uint8, count=count, offset=stored.offset)


def _fill_blocks(out: Tensor, blocks: Tensor, unpack: _Unpack) -> None:
    """out: [blocks, 32]; blocks: [blocks, bytes of one]."""
    is_final = out.dtype == torch.float32 and out.device.type == "cpu"
    scratch = torch.empty(0 if is_final else _SLICE_BLOCKS, 32)
    for start in range(0, len(blocks), _SLICE_BLOCKS):
        part = blocks[start : start + _SLICE_BLOCKS]
        target = out[start : start + _SLICE_BLOCKS]
        values = target if is_final else scratch[: len(part)]
        unpack(part, values)
        if not is_final:
            target.copy_(values)


def _read_float16(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 at byte `start` of each block, [blocks, 1] float32."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _unpack_nibbles(packed: Tensor, values: Tensor) -> Tensor:
    """Unpack the low halves of a block's 16 bytes, then the high halves. packed: [blocks, 16]; values: [blocks, 32]."""
    packed = packed.contiguous()  # torch's bit operations take ten times as long over strides
    values[:, :16] = packed & 0x0F
    values[:, 16:] = packed >> 4
    return values


def _q4_0(blocks: Tensor, values: Tensor) -> None:
    _unpack_nibbles(blocks[:, 2:], values).sub_(8).mul_(_read_float16(blocks, 0))


def _q4_1(blocks: Tensor, values: Tensor) -> None:
    _unpack_nibbles(blocks[:, 4:], values).mul_(_read_float16(blocks, 0)).add_(_read_float16(blocks, 2))


def _q8_0(blocks: Tensor, values: Tensor) -> None:
    values.copy_(blocks[:, 2:].view(torch.int8)).mul_(_read_float16(blocks, 0))


_UNPACKERS: dict[GGMLQuantizationType, _Unpack] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}


_TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_TENSOR_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path, name: str = "") -> Checkpoint:
    """Read a GGUF file. `name` is the model's name; empty: the name of the file."""
    file = GgufFile(path)
    architecture = architecture_of(file)
    shape = _shape(file, architecture)
    tensors = {
        _huggingface_name(each.name): TensorSource(each.shape, partial(_read, file, each)) for each in file.tensors
    }
    return Checkpoint(
        shape=shape,
        card=gguf_card(file, name),
        inverse_frequencies=_frequencies(file, architecture, shape, tensors.pop("rope_freqs.weight", None)),
        tensors=tensors,
        interleaved_rope=INTERLEAVED_ROPE[architecture],
    )


def _huggingface_name(name: str) -> str:
    """Return the Hugging Face name of a tensor. An unknown name is unchanged and rejected when weights are read."""
    parts = name.split(".")
    if parts[0] == "blk" and parts[2] in _LAYER_TENSOR_NAMES:
        return ".".join(["model.layers", parts[1], _LAYER_TENSOR_NAMES[parts[2]], *parts[3:]])
    return _TENSOR_NAMES.get(name, name)


def _read(file: GgufFile, stored: StoredTensor, out: Tensor) -> None:
    read_tensor(out, file, stored)


def _shape(file: GgufFile, architecture: str) -> ModelShape:
    def need(key: str) -> Any:
        return file.require(f"{architecture}.{key}")

    heads, dim = need("attention.head_count"), need("embedding_length")
    return ModelShape(
        dim=dim,
        hidden=need("feed_forward_length"),
        layers=need("block_count"),
        heads=heads,
        kv_heads=file.get(f"{architecture}.attention.head_count_kv", heads),
        head_size=file.get(f"{architecture}.attention.key_length", dim // heads),
        vocab_size=len(file.require("tokenizer.ggml.tokens")),
        context_length=need("context_length"),
        norm_eps=need("attention.layer_norm_rms_epsilon"),
    )


def _frequencies(file: GgufFile, architecture: str, shape: ModelShape, divisors: TensorSource | None) -> Tensor:
    scaling = file.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in {"none", "linear"}:
        raise ModelUnsupported(f"RoPE scaling {scaling!r} is not supported; none, linear and frequency factors are")
    plain = rope_frequencies(shape.head_size, file.get(f"{architecture}.rope.freq_base", 10000.0))
    if scaling == "linear":
        plain = plain / file.require(f"{architecture}.rope.scaling.factor")
    return plain if divisors is None else plain / divisors.tensor().double()
