"""Model cards from files: tokenizer, chat template and limits, without torch and without weights.

A GGUF file has all of them; a Hugging Face folder has config.json, tokenizer.json and related files; a llama2.c file
has a header and the tokenizer `tokN.bin` beside it.
"""

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.gguf_file import GgufFile
from penstock.worker.engine.loaders.tokenizers import byte_level_bpe, sentencepiece_bpe
from penstock.worker.engine.model_card import ModelCard

INTERLEAVED_ROPE = {"llama": True, "qwen2": False, "qwen3": False}  # by architecture, as llama.cpp names it
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # token types

# Control tokens that end a turn; files name only one of them as end of sequence.
_END_TEXTS = {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>"}


def architecture_of(file: GgufFile) -> str:
    architecture = str(file.get("general.architecture"))
    if architecture not in INTERLEAVED_ROPE:
        raise ModelUnsupported(f"{file.path.name} is a {architecture!r}; the engine runs {', '.join(INTERLEAVED_ROPE)}")
    return architecture


def gguf_card(file: GgufFile, name: str = "") -> ModelCard:
    """Read the card of a GGUF file. `name` is the model's name; empty: the name of the file."""
    tokens, types = file.require("tokenizer.ggml.tokens"), file.require("tokenizer.ggml.token_type")
    bos_id, eos_id = file.get("tokenizer.ggml.bos_token_id"), file.get("tokenizer.ggml.eos_token_id")
    ends = {index for index, text in enumerate(tokens) if types[index] == _CONTROL and text in _END_TEXTS}
    return ModelCard(
        name=name or file.path.stem,
        context_length=file.require(f"{architecture_of(file)}.context_length"),
        vocab_size=len(tokens),
        eos_ids=tuple(sorted(ends if eos_id is None else ends | {eos_id})),
        bos_id=bos_id,
        add_bos=bos_id is not None and file.get("tokenizer.ggml.add_bos_token", _is_sentencepiece(file)),
        chat_template=file.get("tokenizer.chat_template", ""),
        tokenizer_json=_tokenizer(file, tokens, types),
        special_tokens=tuple(
            (role, tokens[index]) for role, index in (("bos_token", bos_id), ("eos_token", eos_id)) if index is not None
        ),
    )


def _is_sentencepiece(file: GgufFile) -> bool:
    return bool(file.require("tokenizer.ggml.model") == "llama")


def _tokenizer(file: GgufFile, tokens: list[str], types: list[int]) -> str:
    special = [text for text, kind in zip(tokens, types, strict=True) if kind in {_CONTROL, _UNKNOWN}]
    added = [text for text, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    if _is_sentencepiece(file):
        unknown = tokens[file.get("tokenizer.ggml.unknown_token_id", 0)]
        scores = file.require("tokenizer.ggml.scores")
        return sentencepiece_bpe(tokens, scores, [*special, *added], space="▁", unknown=unknown)
    if file.require("tokenizer.ggml.model") != "gpt2":
        raise ModelUnsupported(
            f"tokenizer {file.require('tokenizer.ggml.model')!r} is not supported; gpt2 and llama are"
        )
    flavour = file.get("tokenizer.ggml.pre", "default")
    return byte_level_bpe(tokens, file.require("tokenizer.ggml.merges"), flavour, special, added)


_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of the text model, which a multimodal model has in a section of its own."""
    config = _read_json(folder / "config.json")
    return config | dict(config.get("text_config") or {})


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelUnsupported(f"{path.parent} has no {path.name}")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def read_optional(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def context_length(config: dict[str, Any]) -> int:
    """Return the positions for which the model computes full attention: at most its sliding window."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    positions = int(config["max_position_embeddings"])
    return min(positions, window or positions)


def folder_card(folder: Path) -> ModelCard:
    config = read_config(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelUnsupported(f"{folder} has no tokenizer.json")
    tokenizer_json = path.read_text(encoding="utf-8")
    options = read_optional(folder / "tokenizer_config.json")
    generation = read_optional(folder / "generation_config.json")
    bos_id = config.get("bos_token_id")
    return ModelCard(
        name=folder.resolve().name,
        context_length=context_length(config),
        vocab_size=config["vocab_size"],
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
    """Whether the model's own tokenizer puts BOS before raw text, which only its post-processor determines."""
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


HEADER_STRUCT = struct.Struct("<7i")
_UNKNOWN_ID, _BOS_ID, _EOS_ID = range(3)
_BOS_TEXT, _EOS_TEXT = "<s>", "</s>"  # the files have them between line feeds


class Llama2cHeader(NamedTuple):
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int  # negative: the head is not the embedding
    context_length: int


def read_header(path: Path) -> Llama2cHeader:
    with path.open("rb") as file:
        start = file.read(HEADER_STRUCT.size)
    if len(start) < HEADER_STRUCT.size:
        raise ModelUnsupported(f"{path.name} is shorter than a llama2.c header")
    return Llama2cHeader._make(HEADER_STRUCT.unpack(start))


def llama2c_card(path: Path) -> ModelCard:
    header = read_header(path)
    pieces, scores = _vocabulary(path, abs(header.vocab_size))
    return ModelCard(
        name=path.stem,
        context_length=header.context_length,
        vocab_size=len(pieces),
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
    """Return piece and score of each id, from the tokenizer file of that size or `tokenizer.bin` beside the model."""
    candidates = [path.with_name(f"tok{vocab_size}.bin"), path.with_name("tokenizer.bin")]
    source = next((each for each in candidates if each.is_file()), None)
    if source is None:
        names = " or ".join(each.name for each in candidates)
        raise ModelUnsupported(f"{path} has no tokenizer; put {names} beside it")
    blob, offset = source.read_bytes(), 4  # skips the longest piece's length
    pieces, scores = [], []
    for _ in range(vocab_size):
        score, length = struct.unpack_from("<fi", blob, offset)
        pieces.append(blob[offset + 8 : offset + 8 + length].decode("utf-8"))
        scores.append(score)
        offset += 8 + length
    pieces[_BOS_ID], pieces[_EOS_ID] = _BOS_TEXT, _EOS_TEXT
    return pieces, scores
