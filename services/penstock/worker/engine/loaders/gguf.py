"""GGUF files, dequantised as they are read. One file holds weights, tokenizer and chat template."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from torch import Tensor

from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.loaders.checkpoint import Checkpoint, ModelUnsupported
from penstock.worker.engine.loaders.tokenizers import byte_level_bpe, sentencepiece_bpe
from penstock.worker.engine.weights import ModelShape, rope_frequencies

_INTERLEAVED_ROPE = {"llama": True, "qwen2": False, "qwen3": False}  # architectures, as llama.cpp writes them
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # token types

# Texts of control tokens that end a turn; files name only one of them as end of sequence.
_END_TEXTS = {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>"}

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
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
    """`name` is what the model is called; by default, what its file is called."""
    reader = GGUFReader(path)
    fields = _Fields(reader)
    architecture = fields.get("general.architecture")
    if architecture not in _INTERLEAVED_ROPE:
        raise ModelUnsupported(f"{path.name} is a {architecture!r}; the engine runs {', '.join(_INTERLEAVED_ROPE)}")
    shape = _shape(fields, architecture)
    tensors: dict[str, Callable[[], Tensor]] = {_name(tensor.name): partial(_read, tensor) for tensor in reader.tensors}
    return Checkpoint(
        shape=shape,
        card=_card(name or path.stem, fields, shape),
        inverse_frequencies=_frequencies(fields, architecture, shape, tensors.pop("rope_freqs.weight", None)),
        tensors=tensors,
        interleaved_rope=_INTERLEAVED_ROPE[architecture],
    )


class _Fields:
    """Metadata of a file by key."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        if key not in self._fields:
            raise ModelUnsupported(f"the file has no metadata {key}")
        return self._fields[key].contents()


def _name(name: str) -> str:
    """Hugging Face name of a tensor; an unknown one as it stands, to be refused when the weights are read."""
    parts = name.split(".")
    if parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return ".".join(["model.layers", parts[1], _LAYER_NAMES[parts[2]], *parts[3:]])
    return _NAMES.get(name, name)


def _read(tensor: ReaderTensor) -> Tensor:
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())  # the file's mapping is read-only


def _shape(fields: _Fields, architecture: str) -> ModelShape:
    def need(key: str) -> Any:
        return fields.need(f"{architecture}.{key}")

    heads, dim = need("attention.head_count"), need("embedding_length")
    return ModelShape(
        dim=dim,
        hidden=need("feed_forward_length"),
        layers=need("block_count"),
        heads=heads,
        kv_heads=fields.get(f"{architecture}.attention.head_count_kv", heads),
        head_size=fields.get(f"{architecture}.attention.key_length", dim // heads),
        vocab_size=len(fields.need("tokenizer.ggml.tokens")),
        context_length=need("context_length"),
        norm_eps=need("attention.layer_norm_rms_epsilon"),
    )


def _frequencies(
    fields: _Fields, architecture: str, shape: ModelShape, divisors: Callable[[], Tensor] | None
) -> Tensor:
    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in {"none", "linear"}:
        raise ModelUnsupported(f"RoPE scaling {scaling!r} is not known; none, linear and frequency factors are")
    plain = rope_frequencies(shape.head_size, fields.get(f"{architecture}.rope.freq_base", 10000.0))
    if scaling == "linear":
        plain = plain / fields.need(f"{architecture}.rope.scaling.factor")
    return plain if divisors is None else plain / divisors().double()


def _card(name: str, fields: _Fields, shape: ModelShape) -> ModelCard:
    tokens, types = fields.need("tokenizer.ggml.tokens"), fields.need("tokenizer.ggml.token_type")
    bos_id, eos_id = fields.get("tokenizer.ggml.bos_token_id"), fields.get("tokenizer.ggml.eos_token_id")
    ends = {index for index, text in enumerate(tokens) if types[index] == _CONTROL and text in _END_TEXTS}
    return ModelCard(
        name=name,
        context_length=shape.context_length,
        vocab_size=shape.vocab_size,
        eos_ids=tuple(sorted(ends if eos_id is None else ends | {eos_id})),
        bos_id=bos_id,
        add_bos=bos_id is not None and fields.get("tokenizer.ggml.add_bos_token", _is_sentencepiece(fields)),
        chat_template=fields.get("tokenizer.chat_template", ""),
        tokenizer_json=_tokenizer(fields, tokens, types),
        special_tokens=tuple(
            (role, tokens[index]) for role, index in (("bos_token", bos_id), ("eos_token", eos_id)) if index is not None
        ),
    )


def _is_sentencepiece(fields: _Fields) -> bool:
    return bool(fields.need("tokenizer.ggml.model") == "llama")


def _tokenizer(fields: _Fields, tokens: list[str], types: list[int]) -> str:
    special = [text for text, kind in zip(tokens, types, strict=True) if kind in {_CONTROL, _UNKNOWN}]
    added = [text for text, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    if _is_sentencepiece(fields):
        unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
        scores = fields.need("tokenizer.ggml.scores")
        return sentencepiece_bpe(tokens, scores, [*special, *added], space="▁", unknown=unknown)
    if fields.need("tokenizer.ggml.model") != "gpt2":
        raise ModelUnsupported(f"tokenizer {fields.need('tokenizer.ggml.model')!r} is not known; gpt2 and llama are")
    flavour = fields.get("tokenizer.ggml.pre", "default")
    return byte_level_bpe(tokens, fields.need("tokenizer.ggml.merges"), flavour, special, added)
