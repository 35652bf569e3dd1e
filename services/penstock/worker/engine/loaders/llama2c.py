"""llama2.c's "version 0" files: a `.bin` of float32 arrays with its tokenizer, `tokN.bin`, beside it."""

import struct
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path

import numpy as np
import torch

from penstock.worker.engine.card import ModelCard
from penstock.worker.engine.loaders.checkpoint import Checkpoint, ModelUnsupported
from penstock.worker.engine.loaders.tokenizers import sentencepiece_bpe
from penstock.worker.engine.weights import ModelShape, rope_frequencies

_HEADER = struct.Struct("<7i")
_UNKNOWN_ID, _BOS_ID, _EOS_ID = range(3)
_BOS_TEXT, _EOS_TEXT = "<s>", "</s>"  # the files write them between line feeds


def read_llama2c(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        header = _HEADER.unpack(file.read(_HEADER.size))
    dim, hidden, layers, heads, kv_heads, vocab_size, context_length = header
    shape = ModelShape(
        dim=dim,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=dim // heads,
        vocab_size=abs(vocab_size),
        context_length=context_length,
        norm_eps=1e-5,
    )
    arrays = _arrays(path, shape, tied=vocab_size > 0)
    return Checkpoint(
        shape=shape,
        card=_card(path, shape),
        tensors={name: partial(torch.from_numpy, array) for name, array in arrays.items()},
        inverse_frequencies=rope_frequencies(shape.head_size, 10000.0),
        interleaved_rope=True,
    )


def _arrays(path: Path, shape: ModelShape, *, tied: bool) -> dict[str, np.ndarray]:
    """Each array of the file under its Hugging Face name, in the file's order."""
    rows, kv_rows = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    stacked = {  # one array per name holds all layers
        "input_layernorm": (shape.dim,),
        "self_attn.q_proj": (rows, shape.dim),
        "self_attn.k_proj": (kv_rows, shape.dim),
        "self_attn.v_proj": (kv_rows, shape.dim),
        "self_attn.o_proj": (shape.dim, rows),
        "post_attention_layernorm": (shape.dim,),
        "mlp.gate_proj": (shape.hidden, shape.dim),
        "mlp.down_proj": (shape.dim, shape.hidden),
        "mlp.up_proj": (shape.hidden, shape.dim),
    }
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, shape.dim)}
    for name, size in stacked.items():
        sizes |= {f"model.layers.{layer}.{name}.weight": size for layer in range(shape.layers)}
    sizes["model.norm.weight"] = (shape.dim,)
    sizes["rope_tables"] = (2, shape.context_length, shape.head_size // 2)
    if not tied:
        sizes["lm_head.weight"] = (shape.vocab_size, shape.dim)
    flat = np.fromfile(path, dtype="<f4", offset=_HEADER.size)
    ends = list(accumulate(prod(size) for size in sizes.values()))
    if ends[-1] != len(flat):
        raise ModelUnsupported(f"{path.name} holds {len(flat)} numbers where its header calls for {ends[-1]}")
    pieces = np.split(flat, ends[:-1])
    arrays = {name: piece.reshape(size) for (name, size), piece in zip(sizes.items(), pieces, strict=True)}
    del arrays["rope_tables"]  # follow from the shape
    return arrays


def _card(path: Path, shape: ModelShape) -> ModelCard:
    pieces, scores = _vocabulary(path, shape.vocab_size)
    return ModelCard(
        name=path.stem,
        context_length=shape.context_length,
        vocab_size=shape.vocab_size,
        eos_ids=(_BOS_ID, _EOS_ID),  # the training text has BOS between stories
        bos_id=_BOS_ID,
        add_bos=True,
        chat_template="",
        tokenizer_json=sentencepiece_bpe(
            pieces, scores, [pieces[_BOS_ID], pieces[_EOS_ID]], space=" ", unknown=pieces[_UNKNOWN_ID]
        ),
        special_tokens=(("bos_token", _BOS_TEXT), ("eos_token", _EOS_TEXT)),
    )


def _vocabulary(path: Path, vocab_size: int) -> tuple[list[str], list[float]]:
    """Piece and score of each id, from the tokenizer file of that size, or `tokenizer.bin`, beside the model."""
    candidates = [path.with_name(f"tok{vocab_size}.bin"), path.with_name("tokenizer.bin")]
    source = next((each for each in candidates if each.is_file()), None)
    if source is None:
        raise ModelUnsupported(f"{path} needs its tokenizer beside it: {' or '.join(each.name for each in candidates)}")
    blob, offset = source.read_bytes(), 4  # skips the longest piece's length
    pieces, scores = [], []
    for _ in range(vocab_size):
        score, length = struct.unpack_from("<fi", blob, offset)
        pieces.append(blob[offset + 8 : offset + 8 + length].decode("utf-8"))
        scores.append(score)
        offset += 8 + length
    pieces[_BOS_ID], pieces[_EOS_ID] = _BOS_TEXT, _EOS_TEXT
    return pieces, scores
