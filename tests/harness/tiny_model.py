"""A random-weight Llama checkpoint with a real byte-level BPE tokenizer, small enough for every test.

The same arguments write the same bytes. The head is not tied to the embedding: a tied random model only echoes
its last token, and a test of caching or resuming would pass without any context having been read.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS_ID = 2  # <|im_end|>
WORDS = [" the", " and", " water", " gate", " flows", " through", " turbine", " token", " stream", " open", "ing", "ed"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(
    folder: Path,
    *,
    vocab: int = 304,
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 512,
    seed: int = 0,
) -> Path:
    """Write a Hugging Face folder (config, weights, tokenizer, chat template) and return it."""
    assert vocab >= len(SPECIAL_TOKENS) + 256, "the byte alphabet and the special tokens must fit"
    folder.mkdir(parents=True, exist_ok=True)
    hidden = dim * 3
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": dim,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": [EOS_ID, 0]})
    _write_json(folder / "tokenizer_config.json", {"chat_template": CHAT_TEMPLATE, "add_bos_token": False})
    tiny_tokenizer(vocab).save(str(folder / "tokenizer.json"))
    save_file(
        _weights(vocab=vocab, dim=dim, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, seed=seed),
        folder / "model.safetensors",
    )
    return folder


def tiny_tokenizer(vocab: int) -> Tokenizer:
    """Every byte, and merges along a few words as far as `vocab` allows; ids beyond them decode to nothing."""
    ids = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    for symbol in sorted(ByteLevel.alphabet()):
        ids[symbol] = len(ids)
    merges = []
    for word in WORDS:
        symbols = word.replace(" ", "Ġ")
        for end in range(2, len(symbols) + 1):
            symbol = symbols[:end]
            if symbol not in ids and len(ids) < vocab:
                ids[symbol] = len(ids)
                merges.append((symbols[: end - 1], symbols[end - 1]))
    tokenizer = Tokenizer(BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _weights(
    *, vocab: int, dim: int, hidden: int, layers: int, heads: int, kv_heads: int, seed: int
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    head_size = dim // heads

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * gain / columns**0.5).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(vocab, dim, gain=dim**0.5),
        "model.norm.weight": np.ones(dim, np.float32),
        "lm_head.weight": matrix(vocab, dim, gain=2.0),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": np.ones(dim, np.float32),
            prefix + "post_attention_layernorm.weight": np.ones(dim, np.float32),
            # Sharp attention over far positions: a wrong cache entry changes the next token.
            prefix + "self_attn.q_proj.weight": matrix(heads * head_size, dim, gain=2.0),
            prefix + "self_attn.k_proj.weight": matrix(kv_heads * head_size, dim, gain=2.0),
            prefix + "self_attn.v_proj.weight": matrix(kv_heads * head_size, dim, gain=2.0),
            prefix + "self_attn.o_proj.weight": matrix(dim, heads * head_size, gain=2.0),
            prefix + "mlp.gate_proj.weight": matrix(hidden, dim),
            prefix + "mlp.up_proj.weight": matrix(hidden, dim),
            prefix + "mlp.down_proj.weight": matrix(dim, hidden),
        }
    return weights


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
