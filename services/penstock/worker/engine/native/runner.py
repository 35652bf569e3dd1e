"""Computes a step's plan with the native forward pass. Owns the packed weights and the KV cache."""

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from penstock.worker.engine.batching.sequence import Slice, StepPlan
from penstock.worker.engine.native import layout
from penstock.worker.engine.native.compiler import NativeUnavailable
from penstock.worker.engine.native.library import (
    Library,
    NativeLayerWeights,
    NativePart,
    NativeShape,
    NativeStep,
    NativeWeights,
)
from penstock.worker.engine.torch.weights import Layer, ModelShape, Weights, rope_tables


class NativeRunner:
    """Satisfies `Runner`. The logits of a row depend on its own tokens alone, bit for bit, in float32 and bfloat16.

    Therefore batch mates, chunking, preemption and resume on a machine of the same type never change a text.
    """

    def __init__(self, shape: ModelShape, weights: Weights, blocks: int, block_size: int, threads: int) -> None:
        """Pack the weights and release the originals layer by layer. Call `check_native` first."""
        library = Library()
        dtype = weights.embedding.dtype
        assert dtype == torch.float32 or (dtype == torch.bfloat16 and library.has_bfloat16), f"no native {dtype}"
        self._arena = layout.Arena()
        self._tensors: list[Tensor] = []  # kept alive, as C++ has their addresses
        self._shape = shape
        self._kv_elements = blocks * block_size * shape.kv_heads * shape.head_size
        layers = (NativeLayerWeights * shape.layers)(*(self._layer(weights.layers.pop(0)) for _ in range(shape.layers)))
        tied = weights.head is weights.embedding
        embedding = self._pack(weights.embedding)
        cos, sin = rope_tables(weights.inverse_frequencies, shape.context_length)
        native_weights = NativeWeights(
            layers=layers,
            embedding=embedding,
            norm=self._copy_to_arena(weights.norm),
            head=embedding if tied else self._pack(weights.head),
            cos=self._copy_to_arena(cos),
            sin=self._copy_to_arena(sin),
        )
        model = library.new(_native_shape(shape, block_size), native_weights, dtype == torch.bfloat16, threads)
        weakref.finalize(self, library.free, model)
        self._forward = library.forward
        self._model = model
        self._parts = (NativePart * 0)()
        self._logits = torch.empty(0)

    def forward(self, plan: StepPlan) -> Tensor:
        """Satisfies `Runner`. The next call overwrites the logits."""
        return self.forward_hidden(plan, ())[0]

    def forward_hidden(self, plan: StepPlan, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Satisfies `EmbeddingRunner`. The next call overwrites the logits."""
        tokens = array("i")
        sampled = array("i")
        slices = plan.slices
        parts, tables = self._fill_parts(slices)
        for part in slices:
            tokens.extend(part.sequence.ids[part.start : part.end])
            if part.is_sampled:
                sampled.append(len(tokens) - 1)
        logits = self._logits_for(len(sampled))
        hidden_rows, hidden = array("i", rows), torch.empty(len(rows), self._shape.dim)
        step = NativeStep(
            tokens=tokens.buffer_info()[0],
            parts=parts,
            sampled=sampled.buffer_info()[0],
            logits=logits.data_ptr(),
            hidden_rows=hidden_rows.buffer_info()[0],
            hidden=hidden.data_ptr(),
            rows=len(tokens),
            part_count=len(slices),
            samples=len(sampled),
            hidden_count=len(rows),
        )
        self._forward(self._model, byref(step))
        del tables  # kept alive until here, as C++ has their addresses
        return logits, hidden

    def _fill_parts(self, slices: list[Slice]) -> "tuple[ctypes.Array[NativePart], list[array[int]]]":
        if len(slices) > len(self._parts):
            self._parts = (NativePart * (2 * len(slices)))()
        tables = [array("i", part.sequence.table) for part in slices]
        for native, part, table in zip(self._parts, slices, tables, strict=False):
            native.table, native.start, native.count = table.buffer_info()[0], part.start, part.count
        return self._parts, tables

    def _logits_for(self, samples: int) -> Tensor:
        if samples > len(self._logits):
            self._logits = torch.empty(samples, self._shape.vocab_size)
        return self._logits[:samples]

    def _layer(self, layer: Layer) -> NativeLayerWeights:
        dtype = layer.qkv.dtype
        return NativeLayerWeights(
            attention_norm=self._copy_to_arena(layer.attention_norm),
            qkv=self._pack(layer.qkv),
            qkv_bias=None if layer.qkv_bias is None else self._copy_to_arena(layout.padded_bias(layer.qkv_bias)),
            q_norm=None if layer.q_norm is None else self._copy_to_arena(layer.q_norm),
            k_norm=None if layer.k_norm is None else self._copy_to_arena(layer.k_norm),
            out=self._pack(layer.out),
            mlp_norm=self._copy_to_arena(layer.mlp_norm),
            gate_up=self._pack_alternating(layer.gate_up),
            down=self._pack(layer.down),
            k=self._allocate_cache(dtype),
            v=self._allocate_cache(dtype),
        )

    def _pack(self, weight: Tensor) -> int:
        panels = self._arena.zeros(layout.packed_size(weight.shape[0], weight.shape[1], weight.dtype), torch.int32)
        layout.pack(weight, panels)
        self._tensors.append(panels)
        return panels.data_ptr()

    def _pack_alternating(self, gate_up: Tensor) -> int:
        """Pack panels of gate and up alternately, so that one thread computes both halves of an output."""
        hidden = -(-len(gate_up) // 2 // layout.PANEL_OUTPUTS) * layout.PANEL_OUTPUTS
        panels = self._arena.zeros(layout.packed_size(2 * hidden, gate_up.shape[1], gate_up.dtype), torch.int32)
        for half, weight in enumerate(gate_up.chunk(2)):
            layout.pack(weight, panels[half::2])
        self._tensors.append(panels)
        return panels.data_ptr()

    def _copy_to_arena(self, tensor: Tensor) -> int:
        """Copy a tensor to the arena and return its address."""
        copy = self._arena.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor)
        self._tensors.append(copy)
        return copy.data_ptr()

    def _allocate_cache(self, dtype: torch.dtype) -> int:
        self._tensors.append(self._arena.zeros((self._kv_elements,), dtype))
        return self._tensors[-1].data_ptr()


def _native_shape(shape: ModelShape, block_size: int) -> NativeShape:
    same = ("dim", "hidden", "layers", "heads", "kv_heads", "head_size", "vocab_size", "norm_eps")
    return NativeShape(**{name: getattr(shape, name) for name in same}, block_size=block_size)


def check_native(shape: ModelShape, block_size: int) -> bool:
    """Return whether bfloat16 is native. Raises NativeUnavailable if machine, model or block size is unsupported."""
    for name, value in (("model's dim", shape.dim), ("head size", shape.head_size), ("block size", block_size)):
        if value % layout.PANEL_OUTPUTS:
            raise NativeUnavailable(f"the {name} is {value}, which is not a multiple of {layout.PANEL_OUTPUTS}")
    return Library().has_bfloat16
