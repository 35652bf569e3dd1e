"""The checkpoints of the comparison: each a Hugging Face folder in bfloat16, and the same weights as GGUF.

Two have random weights, because speed does not depend on them; equal seeds write equal bytes. The third is the mesh's
default model, dequantised, so that every engine computes with the same numbers.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine_bench.gguf_files import write_gguf
from penstock.worker.engine.loaders.checkpoint import TensorSource
from penstock.worker.engine.loaders.gguf import read_gguf
from penstock.worker.engine.loaders.load import locate_model
from penstock.worker.engine.torch.weights import ModelShape, half_split_rows

SMOLLM2 = "SmolLM2-135M-Instruct"
_CONTEXT = 4096  # tokens: prompts of 1,024 with room
_VOCABULARY = 32_000
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _model_shape(dim: int, layers: int, heads: int, kv_heads: int, hidden: int) -> ModelShape:
    return ModelShape(
        dim=dim,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=dim // heads,
        vocab_size=_VOCABULARY,
        context_length=_CONTEXT,
        norm_eps=1e-5,
    )


RANDOM_MODELS: Mapping[str, ModelShape] = {
    "15M": _model_shape(dim=288, layers=6, heads=6, kv_heads=6, hidden=768),
    "125M": _model_shape(dim=768, layers=12, heads=12, kv_heads=4, hidden=2048),
}
# Models whose head is the embedding, as usual for a model of that size; a separate head would add a third.
TIED_MODELS = frozenset({"15M"})


def write_checkpoint(name: str, folder: Path) -> Path:
    """Return the folder of a model, written on first use: the Hugging Face files, and a GGUF file per dtype."""
    target = folder / name
    if not (target / "done").is_file():
        if name == SMOLLM2:
            write_packaged(target)
        else:
            write_random(target, RANDOM_MODELS[name], tied=name in TIED_MODELS)
        for dtype in (torch.bfloat16, torch.float32):
            write_gguf(target, gguf_path(target, dtype), dtype)
        (target / "done").touch()
    return target


def gguf_path(folder: Path, dtype: torch.dtype) -> Path:
    return folder / f"{folder.name}-{str(dtype).removeprefix('torch.')}.gguf"


def write_random(folder: Path, shape: ModelShape, *, tied: bool, seed: int = 0) -> None:
    """Write matrices with a standard deviation of 0.02 and norms about 1, for finite logits and non-zero rows."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        values = torch.randn(size, generator=generator)
        return (1 + 0.1 * values if len(size) == 1 else 0.02 * values).bfloat16()

    tensors = {name: draw(*size) for name, size in tensor_shapes(shape, tied=tied).items()}
    _write_folder(folder, shape, tensors, _filler_tokenizer(shape.vocab_size).to_str(), rope_theta=10_000.0)


def write_packaged(folder: Path) -> None:
    """Write the default model from its Python package, dequantised, with q and k reordered as in transformers.

    Raises ModelUnsupported if the package is not installed.
    """
    source = read_gguf(*locate_model(SMOLLM2))
    heads = {"q_proj": source.shape.heads, "k_proj": source.shape.kv_heads}

    def convert(name: str, stored: TensorSource) -> Tensor:
        values = torch.empty(stored.shape)
        stored.read(values)
        count = heads.get(name.split(".")[-2])
        return (half_split_rows(values, count) if count else values).bfloat16().contiguous()

    tensors = {name: convert(name, stored) for name, stored in source.tensors.items()}
    # The second frequency of a plain RoPE is theta ** (-2 / head_size).
    theta = float(source.inverse_frequencies[1] ** (-source.shape.head_size / 2))
    _write_folder(folder, source.shape, tensors, source.card.tokenizer_json, rope_theta=round(theta))


def tensor_shapes(shape: ModelShape, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """Return the size of every tensor by its Hugging Face name."""
    dim, q, kv = shape.dim, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sizes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab_size, dim),
        "model.norm.weight": (dim,),
    }
    if not tied:
        sizes["lm_head.weight"] = (shape.vocab_size, dim)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        sizes |= {
            prefix + "input_layernorm.weight": (dim,),
            prefix + "self_attn.q_proj.weight": (q, dim),
            prefix + "self_attn.k_proj.weight": (kv, dim),
            prefix + "self_attn.v_proj.weight": (kv, dim),
            prefix + "self_attn.o_proj.weight": (dim, q),
            prefix + "post_attention_layernorm.weight": (dim,),
            prefix + "mlp.gate_proj.weight": (shape.hidden, dim),
            prefix + "mlp.up_proj.weight": (shape.hidden, dim),
            prefix + "mlp.down_proj.weight": (dim, shape.hidden),
        }
    return sizes


def _write_folder(
    folder: Path, shape: ModelShape, tensors: dict[str, Tensor], tokenizer: str, *, rope_theta: float
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tied = "lm_head.weight" not in tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    _write_json(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _SPECIAL[2]}
    )
    _write_json(folder / "config.json", hf_config(shape, tied=tied, rope_theta=rope_theta))


def hf_config(shape: ModelShape, *, tied: bool, rope_theta: float) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.dim,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_length,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": rope_theta,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _filler_tokenizer(size: int) -> Tokenizer:
    """Return a tokenizer of single bytes and fillers: prompts are ids, but engines require a tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*_SPECIAL, *alphabet, alphabet[0] * 2]
    tokens += [f"filler{index}" for index in range(len(tokens), size)]
    merges = [(alphabet[0], alphabet[0])]  # llama.cpp requires at least one
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    return tokenizer
