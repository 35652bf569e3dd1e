"""The loader of llama2.c's "version 0" files: a `.bin` of float32 arrays, with its tokenizer `tokN.bin` beside it."""

from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from penstock.worker.engine.loaders.cards import HEADER_STRUCT, llama2c_card, read_header
from penstock.worker.engine.loaders.checkpoint import Checkpoint, TensorSource
from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.torch.weights import ModelShape, rope_frequencies


def read_llama2c(path: Path) -> Checkpoint:
    header = read_header(path)
    shape = ModelShape(
        dim=header.dim,
        hidden=header.hidden,
        layers=header.layers,
        heads=header.heads,
        kv_heads=header.kv_heads,
        head_size=header.dim // header.heads,
        vocab_size=abs(header.vocab_size),
        context_length=header.context_length,
        norm_eps=1e-5,
    )
    arrays = _arrays(path, shape, tied=header.vocab_size > 0)
    return Checkpoint(
        shape=shape,
        card=llama2c_card(path),
        tensors={name: _source(array) for name, array in arrays.items()},
        inverse_frequencies=rope_frequencies(shape.head_size, 10000.0),
        interleaved_rope=True,
    )


def _source(array: np.ndarray) -> TensorSource:
    def read(out: Tensor) -> None:
        out.copy_(torch.from_numpy(array))

    return TensorSource(array.shape, read)


def _arrays(path: Path, shape: ModelShape, *, tied: bool) -> dict[str, np.ndarray]:
    """Return each array of the file by its Hugging Face name, in the file's order."""
    rows, kv_rows = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    stacked = {  # one array per name holds all layers
        "input_layernorm": (shape.dim,),
        "self_attn.q_proj": (rows, shape.dim),
        "self_attn.k_proj": (kv_rows, shape.dim),
        "self_attn.v_proj": (kv_rows, shape.dim),
        "self_attn.o_proj": (shape.dim, rows),
        "post_attention_layernorm": (shape.dim,),
        "mlp.gate_proj": (shape.hidden, shape.dim),
        "mlp.down_proj": (shape.dim, shape.hidden),
        "mlp.up_proj": (shape.hidden, shape.dim),
    }
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, shape.dim)}
    for name, size in stacked.items():
        sizes |= {f"model.layers.{layer}.{name}.weight": size for layer in range(shape.layers)}
    sizes["model.norm.weight"] = (shape.dim,)
    sizes["rope_tables"] = (2, shape.context_length, shape.head_size // 2)
    if not tied:
        sizes["lm_head.weight"] = (shape.vocab_size, shape.dim)
    flat = np.fromfile(path, dtype="<f4", offset=HEADER_STRUCT.size)
    ends = list(accumulate(prod(size) for size in sizes.values()))
    if ends[-1] != len(flat):
        raise ModelUnsupported(f"{path.name} has {len(flat)} numbers, but its header requires {ends[-1]}")
    pieces = np.split(flat, ends[:-1])
    arrays = {name: piece.reshape(size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}
    del arrays["rope_tables"]  # derived from the shape
    return arrays
