"""The loader of GGUF files, which dequantizes while reading. One file has weights, tokenizer and chat template."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from penstock.worker.engine.loaders.checkpoint import Checkpoint, TensorSource
from penstock.worker.engine.loaders.dequantise import read_tensor
from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.gguf_card import INTERLEAVED_ROPE, architecture_of, gguf_card
from penstock.worker.engine.loaders.gguf_file import GgufFile, StoredTensor
from penstock.worker.engine.torch.weights import ModelShape, rope_frequencies

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
