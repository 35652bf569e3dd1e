"""The Llama-family decoder (Llama, Mistral, Qwen2, Qwen3): one forward pass over a mixed batch. Knows no sequences."""

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from penstock.worker.engine.torch.attention import attend
from penstock.worker.engine.torch.inputs import StepInputs
from penstock.worker.engine.torch.kv_cache import LayerKv
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, rope_tables


class Model:
    def __init__(self, shape: ModelShape, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        cos, sin = rope_tables(weights.inverse_frequencies, shape.context_length)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    def forward(self, inputs: StepInputs, kv: list[LayerKv]) -> Tensor:
        """Write the K and V of every row; return the logits of the sampled rows: [sampled, vocab_size] float32."""
        return self._logits(self._states(inputs, kv), inputs)

    def forward_hidden(self, inputs: StepInputs, kv: list[LayerKv], rows: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`; return also the states of `rows` after the final norm: [rows, dim] float32."""
        x = self._states(inputs, kv)
        weight = self.weights.norm
        return self._logits(x, inputs), rms_norm(x[rows], weight.shape, weight.float(), self.shape.norm_eps)

    def _states(self, inputs: StepInputs, kv: list[LayerKv]) -> Tensor:
        """Write the K and V of every row; return the residual stream after the last layer: [rows, dim] float32."""
        # The residual stream stays float32, as some entries grow so large that bfloat16 would round away the others.
        x = embedding(inputs.tokens, self.weights.embedding).float()  # [rows, dim]
        cos, sin = self._cos[inputs.positions, None], self._sin[inputs.positions, None]  # [rows, 1, head_size / 2]
        for layer, layer_kv in zip(self.weights.layers, kv, strict=True):
            q, k, v = self._qkv(layer, self._norm(x, layer.attention_norm))
            layer_kv.write(inputs.slots, rotate(k, cos, sin), v)
            x = x + linear(attend(rotate(q, cos, sin), layer_kv, inputs), layer.out)
            x = x + self._mlp(layer, self._norm(x, layer.mlp_norm))
        return x

    def _logits(self, x: Tensor, inputs: StepInputs) -> Tensor:
        last = self._norm(x[inputs.sampled_rows], self.weights.norm)
        return linear(last, self.weights.head).float()

    def _qkv(self, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value of each row: [rows, heads or kv_heads, head_size]."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        qkv = linear(x, layer.qkv, layer.qkv_bias).view(len(x), heads + 2 * kv_heads, self.shape.head_size)
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        return self._head_norm(q, layer.q_norm), self._head_norm(k, layer.k_norm), v

    @staticmethod
    def _mlp(layer: Layer, x: Tensor) -> Tensor:
        gate, up = linear(x, layer.gate_up).chunk(2, dim=-1)
        return linear(silu(gate) * up, layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x.float(), weight.shape, weight, self.shape.norm_eps).to(self.dtype)

    def _head_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self._norm(x, weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE on half-split pairs, in float32 for every dtype of the model.

    x: [rows, heads, head_size]; cos, sin: [rows, 1, head_size / 2] of each row's position.
    """
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
