"""The decoder's forward pass on a GPU: our kernels and cuBLAS matrix products. Knows no sequences and no graphs."""

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from penstock.worker.engine.cuda.attention import attend_decodes, attend_prefills, split_length
from penstock.worker.engine.cuda.rows import add_norm, rotate_and_write, silu_multiply
from penstock.worker.engine.cuda.step import StepTensors
from penstock.worker.engine.torch.kv_cache import LayerKv
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, rope_tables


class Decoder:
    """Computes the same as `Model`, from the same weights. It never waits for the GPU."""

    def __init__(self, shape: ModelShape, weights: Weights) -> None:
        self._shape = shape
        self._weights = weights
        self._dtype = weights.embedding.dtype
        cos, sin = rope_tables(weights.inverse_frequencies, shape.context_length)
        self._rope = cos.to(weights.embedding.device), sin.to(weights.embedding.device)
        self._head_norms = [_head_norms(layer) for layer in weights.layers]
        self._split = split_length(shape.context_length)

    def forward(self, step: StepTensors, kv: list[LayerKv]) -> Tensor:
        """Write the K and V of every row; return the logits of the sampled rows: [sampled, vocab_size] float32."""
        weights = self._weights
        residual = embedding(step.tokens, weights.embedding).float()  # [rows, dim], float32 as in `Model`
        x = self._norm(residual, None, weights.layers[0].attention_norm)
        following = [layer.attention_norm for layer in weights.layers[1:]] + [weights.norm]
        for layer, head_norms, layer_kv, norm in zip(weights.layers, self._head_norms, kv, following, strict=True):
            attended = linear(self._attend(layer, head_norms, layer_kv, x, step), layer.out)
            x = self._norm(residual, attended, layer.mlp_norm)
            x = self._norm(residual, linear(silu_multiply(linear(x, layer.gate_up)), layer.down), norm)
        return linear(x.index_select(0, step.sampled_rows), weights.head).float()

    def _attend(self, layer: Layer, head_norms: Tensor | None, kv: LayerKv, x: Tensor, step: StepTensors) -> Tensor:
        """Return the attention output, [rows, heads * head_size]."""
        shape = self._shape
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(len(x), -1, shape.head_size)
        rotate_and_write(qkv, self._rope, head_norms, kv, step, eps=shape.norm_eps)
        out = torch.empty(len(x), shape.heads, shape.head_size, dtype=x.dtype, device=x.device)
        if step.decodes:
            attend_decodes(qkv, kv, step, out, self._split)
        if step.prefills:
            attend_prefills(qkv, kv, step, out)
        return out.flatten(1)

    def _norm(self, residual: Tensor, update: Tensor | None, weight: Tensor) -> Tensor:
        return add_norm(residual, update, weight, self._shape.norm_eps, self._dtype)


def _head_norms(layer: Layer) -> Tensor | None:
    if layer.q_norm is None or layer.k_norm is None:
        assert layer.q_norm is layer.k_norm, "q and k are both normalized, or neither"
        return None
    return torch.stack([layer.q_norm, layer.k_norm])
