"""Oracle: the model that the worlds serve, with one letter per token, and the expected answer to every prompt."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from penstock.worker.engine.interface import SequenceSpec
from penstock.worker.engine.model_card import ModelCard
from penstock.worker.engine.sampling.splitmix64 import mix64
from penstock.worker.engine.simulated.engine import sequence_key

MODEL_NAME = "letters"
# Two pieces are halves of one UTF-8 character, so that edges must hold back incomplete text.
PIECES = (*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ã", "©")
EOS_ID = len(PIECES)
VOCABULARY_SIZE = len(PIECES) + 1
CONTEXT_LENGTH = 256  # tokens
_BYTES = {"Ġ": b" ", "Ã": b"\xc3", "©": b"\xa9"}


class ExpectedAnswer(NamedTuple):
    """The answer that a client must receive in spite of all faults."""

    token_ids: list[int]
    text: str
    finish_reason: str  # "stop" or "length"


def model_card() -> ModelCard:
    return ModelCard(
        name=MODEL_NAME,
        context_length=CONTEXT_LENGTH,
        vocab_size=VOCABULARY_SIZE,
        eos_ids=(EOS_ID,),
        bos_id=None,
        add_bos=False,
        chat_template="",
        tokenizer_json=json.dumps(_TOKENIZER),
    )


def expected_answer(
    prompt: Sequence[int], seed: int, max_output_tokens: int, *, ignore_eos: bool, stops: Sequence[str]
) -> ExpectedAnswer:
    """Return the answer to a prompt, up to an end-of-sequence id or before the first stop string."""
    spec = SequenceSpec(seq_id=1, token_ids=prompt, max_output_tokens=max_output_tokens, seed=seed)
    key, ids = sequence_key(spec), list[int]()
    while len(ids) < max_output_tokens:
        ids.append(mix64(key ^ (len(prompt) + len(ids))) % VOCABULARY_SIZE)
        if ids[-1] == EOS_ID and not ignore_eos:
            return ExpectedAnswer(ids, text_of(ids), "stop")
        positions = [text_of(ids).find(stop) for stop in stops if stop in text_of(ids)]
        if positions:
            return ExpectedAnswer(ids, text_of(ids)[: min(positions)], "stop")
    return ExpectedAnswer(ids, text_of(ids), "length")


def text_of(ids: Sequence[int]) -> str:
    pieces = (PIECES[each] for each in ids if each != EOS_ID)
    return b"".join(_BYTES.get(each, each.encode()) for each in pieces).decode(errors="replace")


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
    "model": {"type": "BPE", "vocab": {piece: index for index, piece in enumerate(PIECES)}, "merges": []},
}
