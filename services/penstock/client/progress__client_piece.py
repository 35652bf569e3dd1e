"""What a caller gets of an answer at a time."""

from collections.abc import Sequence
from typing import NamedTuple


class TokenChunk(NamedTuple):
    """The tokens of one step, and the text they have brought; the text is empty while a character is incomplete."""

    text: str
    token_ids: Sequence[int]
    first_index: int  # of the first token in the answer, from 0
    logprobs: Sequence[float] = ()  # one for each token, if asked for
