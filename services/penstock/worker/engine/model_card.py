"""The model card: tokenizer, chat template and limits of a model, without its weights. Loads no torch."""

import json
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    name: str
    context_length: int  # maximum number of prompt and output tokens together
    vocab_size: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool  # whether `bos_id` precedes raw text; a rendered chat template has its own
    chat_template: str  # Jinja; empty: none
    tokenizer_json: str  # Hugging Face `tokenizers`; encode with add_special_tokens=False
    special_tokens: tuple[tuple[str, str], ...] = ()  # such as ("bos_token", "<s>"), named in chat templates

    def plain_ids(self) -> range:
        """Longest range of ids without a special token."""
        tokenizer = json.loads(self.tokenizer_json)
        special = sorted(token["id"] for token in tokenizer["added_tokens"] if token["id"] < self.vocab_size)
        edges = [-1, *special, self.vocab_size]
        runs = [range(before + 1, after) for before, after in pairwise(edges)]
        return max(runs, key=len)
