"""A checkpoint, the result of a loader: the model's shape, its card and its unread tensors by Hugging Face name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, half_split_rows


class TensorSource(NamedTuple):
    """One unread tensor. `read` fills a tensor of this shape, of any float dtype and on any device."""

    shape: tuple[int, ...]
    read: Callable[[Tensor], None]

    def tensor(self) -> Tensor:
        """Read as float32."""
        whole = torch.empty(self.shape)
        self.read(whole)
        return whole


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    shape: ModelShape
    card: ModelCard
    tensors: dict[str, TensorSource]
    inverse_frequencies: Tensor  # [head_size / 2]
    interleaved_rope: bool  # q and k were trained on pairs (2i, 2i+1)

    def weights(self, dtype: torch.dtype, device: torch.device) -> Weights:
        """Read all tensors. Raises ModelUnsupported for missing and for unknown tensors."""
        reader = _TensorReader(self.card.name, dict(self.tensors), dtype, device)
        embedding = reader.read("model.embed_tokens.weight")
        head = reader.read_optional("lm_head.weight")
        weights = Weights(
            embedding=embedding,
            layers=[self._layer(f"model.layers.{index}.", reader) for index in range(self.shape.layers)],
            norm=reader.read("model.norm.weight"),
            head=embedding if head is None else head,
            inverse_frequencies=self.inverse_frequencies,
        )
        if reader.unread:
            ignored = sorted(reader.unread)[:5]
            raise ModelUnsupported(f"{self.card.name} has tensors that the engine would ignore: {ignored}")
        return weights

    def _layer(self, prefix: str, reader: "_TensorReader") -> Layer:
        qkv = reader.read_joined([f"{prefix}self_attn.{name}_proj.weight" for name in "qkv"])
        biases = [f"{prefix}self_attn.{name}_proj.bias" for name in "qkv"]
        biases = [name for name in biases if name in reader.unread]
        if self.interleaved_rope:
            self._to_half_split(qkv)
            if biases:
                raise ModelUnsupported(f"{self.card.name} has biases on interleaved RoPE pairs")
        return Layer(
            attention_norm=reader.read(prefix + "input_layernorm.weight"),
            qkv=qkv,
            qkv_bias=reader.read_joined(biases) if biases else None,
            q_norm=reader.read_optional(prefix + "self_attn.q_norm.weight"),
            k_norm=reader.read_optional(prefix + "self_attn.k_norm.weight"),
            out=reader.read(prefix + "self_attn.o_proj.weight"),
            mlp_norm=reader.read(prefix + "post_attention_layernorm.weight"),
            gate_up=reader.read_joined([prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"]),
            down=reader.read(prefix + "mlp.down_proj.weight"),
        )

    def _to_half_split(self, qkv: Tensor) -> None:
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        q, k, _ = torch.split(qkv, [count * self.shape.head_size for count in (heads, kv_heads, kv_heads)])
        q.copy_(half_split_rows(q, heads))
        k.copy_(half_split_rows(k, kv_heads))


@dataclass(slots=True)
class _TensorReader:
    """Reads each tensor once, directly to its final memory."""

    model: str
    unread: dict[str, TensorSource]
    dtype: torch.dtype
    device: torch.device

    def read_optional(self, name: str) -> Tensor | None:
        return self.read(name) if name in self.unread else None

    def read(self, name: str) -> Tensor:
        return self.read_joined([name])

    def read_joined(self, names: list[str]) -> Tensor:
        """Read tensors that differ only in their first dimension, concatenated along it."""
        sources = [self._source(name) for name in names]
        rows = [source.shape[0] for source in sources]
        dtype = torch.float32 if "norm" in names[0] else self.dtype
        whole = torch.empty((sum(rows), *sources[0].shape[1:]), dtype=dtype, device=self.device)
        for part, source in zip(torch.split(whole, rows), sources, strict=True):
            source.read(part)
        return whole

    def _source(self, name: str) -> TensorSource:
        source = self.unread.pop(name, None)
        if source is None:
            raise ModelUnsupported(f"{self.model} has no tensor {name}")
        return source
