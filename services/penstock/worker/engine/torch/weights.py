"""The tensors and the shape of a Llama-family model, in the layout of `Model`.

Loaders convert each file format to it: q, k and v in one matrix, gate and up in one, RoPE on half-split pairs, matrices
in the model's dtype and norms in float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int
    norm_eps: float

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.layers * 2 * self.kv_heads * self.head_size * dtype.itemsize


@dataclass(slots=True, kw_only=True)
class Layer:
    attention_norm: Tensor  # [dim]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_size, dim]
    qkv_bias: Tensor | None  # [(heads + 2 * kv_heads) * head_size]
    q_norm: Tensor | None  # [head_size]
    k_norm: Tensor | None  # [head_size]
    out: Tensor  # [dim, heads * head_size]
    mlp_norm: Tensor  # [dim]
    gate_up: Tensor  # [2 * hidden, dim]
    down: Tensor  # [dim, hidden]


@dataclass(slots=True, kw_only=True)
class Weights:
    embedding: Tensor  # [vocab_size, dim]
    layers: list[Layer]
    norm: Tensor  # [dim]
    head: Tensor  # [vocab_size, dim]; the embedding itself if they are tied
    inverse_frequencies: Tensor  # [head_size / 2] float32: RoPE's angle per position


def half_split_rows(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a q or k projection made for RoPE on pairs (2i, 2i+1) to pairs (i, i + head_size / 2).

    weight: [heads * head_size, ...]. Scores are sums over the rows of a head, so equal orders of q and k do not change
    them.
    """
    pairs = weight.reshape(heads, -1, 2, *weight.shape[1:])  # [heads, head_size / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(weight.shape)


def rope_frequencies(head_size: int, theta: float) -> Tensor:
    """Return RoPE's inverse frequencies, [head_size / 2]. Source: Su et al. 2021 (RoFormer), section 3.2.2."""
    return theta ** -(torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)


def rope_tables(inverse_frequencies: Tensor, context_length: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each position's angles, [context_length, head_size / 2] float32 each."""
    positions = torch.arange(context_length, dtype=torch.float64)
    angles = torch.outer(positions, inverse_frequencies.double().cpu())
    return angles.cos().float(), angles.sin().float()
