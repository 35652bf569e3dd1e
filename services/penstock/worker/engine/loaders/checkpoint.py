"""What a loader reads a file into: the model's shape, its card, and each tensor by its Hugging Face name, unread."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.weights import Layer, ModelShape, Weights, half_split_rows


class ModelUnsupported(ValueError):
    """These files do not hold a model that the engine can run. The message says what about them it is."""


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    shape: ModelShape
    card: ModelCard
    tensors: dict[str, Callable[[], Tensor]]
    inverse_frequencies: Tensor  # [head_size / 2]
    interleaved_rope: bool  # q and k were trained on pairs (2i, 2i+1)

    def weights(self, dtype: torch.dtype, device: torch.device) -> Weights:
        """Read everything. Raises ModelUnsupported over what is missing, and over what is there and not understood."""
        unread = dict(self.tensors)

        def find(name: str) -> Tensor | None:
            read = unread.pop(name, None)
            return None if read is None else read().to(device, torch.float32 if "norm" in name else dtype)

        def take(name: str) -> Tensor:
            tensor = find(name)
            if tensor is None:
                raise ModelUnsupported(f"{self.card.name} has no tensor {name}")
            return tensor

        embedding = take("model.embed_tokens.weight")
        head = find("lm_head.weight")
        weights = Weights(
            embedding=embedding,
            layers=[self._layer(f"model.layers.{index}.", take, find) for index in range(self.shape.layers)],
            norm=take("model.norm.weight"),
            head=embedding if head is None else head,
            inverse_frequencies=self.inverse_frequencies,
        )
        if unread:
            raise ModelUnsupported(f"{self.card.name} has tensors that the engine would ignore: {sorted(unread)[:5]}")
        return weights

    def _layer(self, prefix: str, take: Callable[[str], Tensor], find: Callable[[str], Tensor | None]) -> Layer:
        q, k, v = (take(f"{prefix}self_attn.{name}_proj.weight") for name in "qkv")
        biases = [find(f"{prefix}self_attn.{name}_proj.bias") for name in "qkv"]
        if self.interleaved_rope:
            q, k = half_split_rows(q, self.shape.heads), half_split_rows(k, self.shape.kv_heads)
            if any(bias is not None for bias in biases):
                raise ModelUnsupported(f"{self.card.name} has biases on interleaved RoPE pairs")
        present = [bias for bias in biases if bias is not None]
        return Layer(
            attention_norm=take(prefix + "input_layernorm.weight"),
            qkv=torch.cat([q, k, v]),
            qkv_bias=torch.cat(present) if present else None,
            q_norm=find(prefix + "self_attn.q_norm.weight"),
            k_norm=find(prefix + "self_attn.k_norm.weight"),
            out=take(prefix + "self_attn.o_proj.weight"),
            mlp_norm=take(prefix + "post_attention_layernorm.weight"),
            gate_up=torch.cat([take(prefix + "mlp.gate_proj.weight"), take(prefix + "mlp.up_proj.weight")]),
            down=take(prefix + "mlp.down_proj.weight"),
        )
