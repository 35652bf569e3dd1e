"""Converts a Hugging Face folder of the Llama family to a GGUF file without quantising."""

import json
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from safetensors.torch import load_file
from torch import Tensor

_NORMAL, _CONTROL = 1, 3  # token types
_KINDS = {torch.bfloat16: GGMLQuantizationType.BF16, torch.float32: GGMLQuantizationType.F32}


def write_gguf(folder: Path, path: Path, dtype: torch.dtype) -> None:
    """Write matrices in `dtype` and norms in float32, which llama.cpp requires."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = GGUFWriter(path, "llama")
    _add_shape(writer, config)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), config)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in load_file(folder / "model.safetensors").items():
        kind = _KINDS[dtype if weight.ndim == 2 else torch.float32]
        values = interleaved(name, weight.float(), config).contiguous().numpy()
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        assert gguf_name, f"llama.cpp has no name for {name}"
        writer.add_tensor(gguf_name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(name: str, weight: Tensor, config: dict[str, Any]) -> Tensor:
    """Reorder rows of q and k from RoPE pairs (i, i + head_size / 2) to llama.cpp's (2i, 2i + 1); keep the rest."""
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            return weight.reshape(config[key], 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return weight


def _add_shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def _add_tokenizer(writer: GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
