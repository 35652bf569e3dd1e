"""The tiny model as a GGUF file, converted as by llama.cpp: renamed, q and k reordered, quantized."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from safetensors.numpy import load_file

from tiny_model import CHAT_TEMPLATE, EOS_ID, tiny_tokenizer


def write_gguf(
    folder: Path,
    path: Path,
    *,
    architecture: str = "llama",
    kind: GGMLQuantizationType | None = None,
    extra: Sequence[tuple[str, np.ndarray]] = (),
) -> Path:
    """Convert a folder that `write_tiny_model` wrote. `kind` quantises the matrices; `extra` tensors go in as named."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = GGUFWriter(path, architecture)
    _add_shape(writer, config)
    _add_tokenizer(writer, config["vocab_size"])
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, weight in load_file(folder / "model.safetensors").items():
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        array = _interleaved(name, weight, config) if architecture == "llama" else weight
        if kind is not None and array.ndim == 2:
            writer.add_tensor(theirs, quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs, array)
    for name, array in extra:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def _add_tokenizer(writer: GGUFWriter, vocab: int) -> None:
    model = json.loads(tiny_tokenizer(vocab).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])  # control or normal
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS_ID)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _interleaved(name: str, weight: np.ndarray, config: dict) -> np.ndarray:
    """Rows of q and k in the order of RoPE on pairs (2i, 2i+1)."""
    heads = config["num_attention_heads"] if ".q_proj" in name else config["num_key_value_heads"]
    if ".q_proj" not in name and ".k_proj" not in name:
        return weight
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
