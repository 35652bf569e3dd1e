"""The card of a llama2.c file, from its header and the tokenizer `tokN.bin` beside it."""

import struct
from pathlib import Path
from typing import NamedTuple

from penstock.worker.engine.loaders.errors import ModelUnsupported
from penstock.worker.engine.loaders.tokenizers import sentencepiece_bpe
from penstock.worker.engine.model_card import ModelCard

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
