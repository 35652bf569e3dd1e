"""The card of a Hugging Face folder, from config.json, tokenizer.json and related files."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.model_card import ModelCard

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
