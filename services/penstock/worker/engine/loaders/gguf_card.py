"""The card of a GGUF file: tokenizer, chat template and end-of-sequence ids."""

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
