"""The loader of Hugging Face folders: config.json, and safetensors in one file or in shards."""

import math
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from penstock.worker.engine.loaders.cards import context_length, folder_card, read_config, read_optional
from penstock.worker.engine.loaders.checkpoint import Checkpoint, TensorSource
from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.torch.weights import ModelShape, rope_frequencies

_ARCHITECTURES = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}


def read_folder(folder: Path) -> Checkpoint:
    config = read_config(folder)
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in _ARCHITECTURES:
        raise ModelUnsupported(
            f"{folder.name} is a {architecture}; the engine runs {', '.join(sorted(_ARCHITECTURES))}"
        )
    return Checkpoint(
        shape=_shape(config),
        card=folder_card(folder),
        tensors=_tensors(folder, tied=config.get("tie_word_embeddings", False)),
        inverse_frequencies=_frequencies(config, _shape(config)),
        interleaved_rope=False,
    )


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
        context_length=context_length(config),
        norm_eps=config["rms_norm_eps"],
    )


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
            raise ModelUnsupported(f"RoPE scaling {other!r} is not supported; default, linear and llama3 are")


def _llama3_frequencies(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Divide slow rotations by `factor`, keep fast ones, and blend linearly between. Source: Llama 3.1's model card."""
    turns = plain * float(scaling["original_max_position_embeddings"]) / (2 * math.pi)  # within the original context
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / float(scaling["factor"])


def _tensors(folder: Path, *, tied: bool) -> dict[str, TensorSource]:
    files = sorted(folder.glob("*.safetensors"))
    index = read_optional(folder / "model.safetensors.index.json").get("weight_map")
    if index:
        files = sorted({folder / name for name in index.values()})
    tensors: dict[str, TensorSource] = {}
    for path in files:
        if not path.is_file():
            raise ModelUnsupported(f"{folder} has no {path.name}, which its index names")
        shard: Any = safe_open(path, framework="pt")
        tensors |= {name: _source(shard, name) for name in shard.keys()}  # noqa: SIM118 - not a dict
    if not tensors:
        raise ModelUnsupported(f"{folder} has no .safetensors file")
    if tied:
        tensors.pop("lm_head.weight", None)  # some exports repeat the embedding
    return {name: read for name, read in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _source(shard: Any, name: str) -> TensorSource:
    def read(out: Tensor) -> None:
        out.copy_(shard.get_tensor(name))

    return TensorSource(tuple(shard.get_slice(name).get_shape()), read)
