"""Oracle: the model that the worlds serve, with one letter per token, and the expected answer to every prompt.

A rollout replaces version 0 of the model by version 1, which has other weights and another order of the letters: an
answer with tokens of both, or a prompt tokenized for one version and run by the other, differs from both expected ones.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.sampling.splitmix64 import mix64
from penstock.worker.engine.simulated.engine import sequence_key

MODEL_NAME = "letters"
# Two pieces are halves of one UTF-8 character, so that edges must hold back incomplete text.
PIECES = (*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ã", "©")
VERSIONS = (0, 1)
SHIFT = 13  # ids by which the letters of version 1 are shifted
LETTERS = 26
EOS_ID = len(PIECES)
VOCABULARY_SIZE = len(PIECES) + 1
CONTEXT_LENGTH = 256  # tokens
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_BYTES = {"Ġ": b" ", "Ã": b"\xc3", "©": b"\xa9"}


class ExpectedAnswer(NamedTuple):
    """The answer that a client must receive in spite of all faults."""

    token_ids: list[int]
    text: str
    finish_reason: str  # "stop" or "length"


def salt_of(version: int) -> bytes:
    """Return the salt of the engine, which stands for the weights."""
    return bytes([version]) if version else b""


def pieces_of(version: int) -> Sequence[str]:
    shift = SHIFT * version
    return (*PIECES[shift:LETTERS], *PIECES[:shift], *PIECES[LETTERS:])


def model_card(version: int = 0) -> ModelCard:
    vocabulary = {piece: index for index, piece in enumerate(pieces_of(version))}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return ModelCard(
        name=MODEL_NAME,
        context_length=CONTEXT_LENGTH,
        vocab_size=VOCABULARY_SIZE,
        eos_ids=(EOS_ID,),
        bos_id=None,
        add_bos=False,
        chat_template=CHAT_TEMPLATE,
        tokenizer_json=json.dumps(_TOKENIZER | {"model": model}),
        weights_digest=f"{version:032x}",
    )


@cache
def versions_by_digest(block_size: int) -> dict[str, int]:
    return {model_card(version).digest(block_size): version for version in VERSIONS}


def expected_answer(
    prompt: Sequence[int],
    seed: int,
    max_output_tokens: int,
    *,
    ignore_eos: bool,
    stops: Sequence[str],
    version: int = 0,
) -> ExpectedAnswer:
    """Return the answer to a prompt, up to an end-of-sequence id or before the first stop string."""
    spec = SequenceSpec(seq_id=1, token_ids=prompt, max_output_tokens=max_output_tokens, seed=seed)
    key, ids = sequence_key(spec, salt_of(version)), list[int]()
    while len(ids) < max_output_tokens:
        ids.append(mix64(key ^ (len(prompt) + len(ids))) % VOCABULARY_SIZE)
        text = text_of(ids, version)
        if ids[-1] == EOS_ID and not ignore_eos:
            return ExpectedAnswer(ids, text, "stop")
        positions = [text.find(stop) for stop in stops if stop in text]
        if positions:
            return ExpectedAnswer(ids, text[: min(positions)], "stop")
    return ExpectedAnswer(ids, text_of(ids, version), "length")


def text_of(ids: Sequence[int], version: int = 0) -> str:
    pieces = pieces_of(version)
    return b"".join(_BYTES.get(pieces[each], pieces[each].encode()) for each in ids if each != EOS_ID).decode(
        errors="replace"
    )


def letter_ids(text: str, version: int) -> tuple[int, ...]:
    """Return the token ids of a text of letters."""
    return tuple(pieces_of(version).index(letter) for letter in text)


_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {
            "id": EOS_ID,
            "content": "<end>",
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
    ],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
}
