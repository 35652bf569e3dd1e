"""The model card: tokenizer, chat template and limits of a model, without its weights. Loads no torch."""

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import pairwise

DIGEST_BYTES = 16
NOT_IDENTIFYING = ("context_length",)  # it may be limited by the memory of the worker, which changes no output


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
    weights_digest: str = ""  # of the weights and their configuration (`loaders.weights_digest`)
    output_settings: tuple[tuple[str, str], ...] = ()  # settings of the engine that change the output, such as dtype
    enforces_forms: bool = False  # of outputs
    embedding_size: int = 0  # numbers of an embedding; 0: the engine computes none
    pooling: str = ""  # of embeddings (`interface.Pooling`); empty: the engine computes none

    def digest(self, block_size: int) -> str:
        """Return the digest of all that determines the tokens of an answer, and of the block size.

        Edges hash prompts in blocks of this size, and workers of another size have no use for these hashes.
        """
        parts = {name: value for name, value in asdict(self).items() if name not in NOT_IDENTIFYING}
        text = json.dumps(parts | {"block_size": block_size}, sort_keys=True)
        return blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()

    def plain_ids(self) -> range:
        """Longest range of ids without a special token."""
        tokenizer = json.loads(self.tokenizer_json)
        special = sorted(token["id"] for token in tokenizer["added_tokens"] if token["id"] < self.vocab_size)
        edges = [-1, *special, self.vocab_size]
        runs = [range(before + 1, after) for before, after in pairwise(edges)]
        return max(runs, key=len)
