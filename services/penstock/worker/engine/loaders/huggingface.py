"""Hugging Face folders: config.json, safetensors in one file or in shards, tokenizer.json and its companions."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.loaders.checkpoint import Checkpoint, ModelUnsupported
from penstock.worker.engine.weights import ModelShape, rope_frequencies

_ARCHITECTURES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_folder(folder: Path) -> Checkpoint:
    config = _read_json(folder / "config.json")
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in _ARCHITECTURES:
        raise ModelUnsupported(
            f"{folder.name} is a {architecture}; the engine runs {', '.join(sorted(_ARCHITECTURES))}"
        )
    shape = _shape(config)
    return Checkpoint(
        shape=shape,
        card=_card(folder, config, shape),
        tensors=_tensors(folder, tied=config.get("tie_word_embeddings", False)),
        inverse_frequencies=_frequencies(config, shape),
        interleaved_rope=False,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelUnsupported(f"{path.parent} has no {path.name}")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _shape(config: dict[str, Any]) -> ModelShape:
    heads = config["num_attention_heads"]
    return ModelShape(
        dim=config["hidden_size"],
        hidden=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        context_length=_context_length(config),
        norm_eps=config["rms_norm_eps"],
    )


def _context_length(config: dict[str, Any]) -> int:
    """Positions for which full attention is what the model computes: a sliding window ends them."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    positions = int(config["max_position_embeddings"])
    return min(positions, window or positions)


def _frequencies(config: dict[str, Any], shape: ModelShape) -> Tensor:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
    plain = rope_frequencies(shape.head_size, theta)
    match scaling.get("rope_type") or scaling.get("type") or "default":
        case "default":
            return plain
        case "linear":
            return plain / float(scaling["factor"])
        case "llama3":
            return _llama3_frequencies(plain, scaling)
        case other:
            raise ModelUnsupported(f"RoPE scaling {other!r} is not known; default, linear and llama3 are")


def _llama3_frequencies(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Slow rotations divided by `factor`, fast ones kept, a linear blend between. Source: Llama 3.1's model card."""
    turns = plain * float(scaling["original_max_position_embeddings"]) / (2 * math.pi)  # within the original context
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / float(scaling["factor"])


def _tensors(folder: Path, *, tied: bool) -> dict[str, Callable[[], Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    index = _read_optional(folder / "model.safetensors.index.json").get("weight_map")
    if index:
        files = sorted({folder / name for name in index.values()})
    tensors: dict[str, Callable[[], Tensor]] = {}
    for path in files:
        if not path.is_file():
            raise ModelUnsupported(f"{folder} lacks {path.name}, which its index names")
        shard: Any = safe_open(path, framework="pt")
        tensors |= {name: partial(shard.get_tensor, name) for name in shard.keys()}  # noqa: SIM118 - not a dict
    if not tensors:
        raise ModelUnsupported(f"{folder} has no .safetensors file")
    if tied:
        tensors.pop("lm_head.weight", None)  # some exports repeat the embedding
    return {name: read for name, read in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _card(folder: Path, config: dict[str, Any], shape: ModelShape) -> ModelCard:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelUnsupported(f"{folder} has no tokenizer.json")
    tokenizer_json = path.read_text(encoding="utf-8")
    options = _read_optional(folder / "tokenizer_config.json")
    generation = _read_optional(folder / "generation_config.json")
    bos_id = config.get("bos_token_id")
    return ModelCard(
        name=folder.resolve().name,
        context_length=shape.context_length,
        vocab_size=shape.vocab_size,
        eos_ids=_eos_ids(config, generation),
        bos_id=bos_id,
        add_bos=_adds_bos(tokenizer_json, bos_id),
        chat_template=_chat_template(folder, options),
        tokenizer_json=tokenizer_json,
        special_tokens=_special_tokens(options),
    )


def _eos_ids(config: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)


def _adds_bos(tokenizer_json: str, bos_id: int | None) -> bool:
    """Whether the model's own tokenizer puts BOS before raw text; only its post-processor knows."""
    return bos_id is not None and Tokenizer.from_str(tokenizer_json).encode("a").ids[:1] == [bos_id]


def _chat_template(folder: Path, options: dict[str, Any]) -> str:
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    template = options.get("chat_template") or ""
    if isinstance(template, list):
        template = next((each["template"] for each in template if each["name"] == "default"), "")
    return str(template)


def _special_tokens(options: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    found = ((role, options.get(role)) for role in _SPECIAL_ROLES)
    return tuple((role, token["content"] if isinstance(token, dict) else str(token)) for role, token in found if token)
