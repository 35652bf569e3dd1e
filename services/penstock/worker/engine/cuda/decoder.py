"""The decoder's forward pass on a GPU: our kernels and cuBLAS matrix products. Knows no sequences and no graphs."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from penstock.worker.engine.cuda.attention import (
    DecodeSplits,
    PrefillTiles,
    attend_decodes,
    attend_prefills,
    plan_splits,
    plan_tiles,
)
from penstock.worker.engine.cuda.rows import add_norm, rotate_and_write, silu_multiply
from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.torch.kv_cache import LayerKv
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, rope_tables


class _StepAttention(NamedTuple):
    step: StepTensors
    tiles: PrefillTiles | None
    out: Tensor  # [rows, heads, head_size], of each layer in turn; 0 in padding rows, which no layer writes


class Decoder:
    """Computes the same as `Model`, from the same weights. It never waits for the GPU."""

    def __init__(self, shape: ModelShape, weights: Weights, slots: int) -> None:
        self._shape = shape
        self._weights = weights
        self._dtype = weights.embedding.dtype
        cos, sin = rope_tables(weights.inverse_frequencies, shape.context_length)
        self._rope = cos.to(weights.embedding.device), sin.to(weights.embedding.device)
        self._head_norms = [_head_norms(layer) for layer in weights.layers]
        device = weights.embedding.device
        self._splits = DecodeSplits.allocate(
            slots, shape.heads, shape.head_size, context_length=shape.context_length, device=device
        )

    def hidden(self, step: StepTensors, kv: list[LayerKv]) -> Tensor:
        """Write the K and V of every row; return the normalized output of the last layer, [rows, dim].

        The output of a padding row has no meaning.
        """
        weights = self._weights
        attention = self._plan(step)
        residual = embedding(step.tokens, weights.embedding).float()  # [rows, dim], float32 as in `Model`
        x = self._norm(residual, None, weights.layers[0].attention_norm)
        following = [layer.attention_norm for layer in weights.layers[1:]] + [weights.norm]
        for layer, head_norms, layer_kv, norm in zip(weights.layers, self._head_norms, kv, following, strict=True):
            attended = linear(self._attend(layer, head_norms, layer_kv, x, attention), layer.out)
            x = self._norm(residual, attended, layer.mlp_norm)
            x = self._norm(residual, linear(silu_multiply(linear(x, layer.gate_up)), layer.down), norm)
        return x

    def logits(self, hidden: Tensor, sampled_rows: Tensor) -> Tensor:
        """Return the logits of the sampled rows: [sampled, vocab_size] float32."""
        return linear(hidden.index_select(0, sampled_rows), self._weights.head).float()

    def _plan(self, step: StepTensors) -> _StepAttention:
        """Divide the attention of a step among programs, once for all layers."""
        shape = self._shape
        size = (len(step.tokens), shape.heads, shape.head_size)
        if step.shape.decodes:
            plan_splits(step, self._splits)
        tiles = plan_tiles(step, shape.heads // shape.kv_heads, self._splits.slots) if step.shape.prefills else None
        return _StepAttention(step, tiles, torch.zeros(size, dtype=self._dtype, device=step.tokens.device))

    def _attend(
        self, layer: Layer, head_norms: Tensor | None, kv: LayerKv, x: Tensor, attention: _StepAttention
    ) -> Tensor:
        """Return the attention output, [rows, heads * head_size]."""
        step, tiles, out = attention
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, self._shape.head_size)
        rotate_and_write(qkv, self._rope, head_norms, kv, step, eps=self._shape.norm_eps)
        if step.shape.decodes:
            attend_decodes(qkv, kv, step, out, self._splits)
        if tiles is not None:
            attend_prefills(qkv, kv, step, out, tiles)
        return out.flatten(1)

    def _norm(self, residual: Tensor, update: Tensor | None, weight: Tensor) -> Tensor:
        return add_norm(residual, update, weight, self._shape.norm_eps, self._dtype)


def _head_norms(layer: Layer) -> Tensor | None:
    if layer.q_norm is None or layer.k_norm is None:
        assert layer.q_norm is layer.k_norm, "q and k are both normalized, or neither"
        return None
    return torch.stack([layer.q_norm, layer.k_norm])
