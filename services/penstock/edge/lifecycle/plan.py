"""Generation plan: a tokenized request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.edge.text.detokenizer import TextDelta
from penstock.v1.inference_pb2 import Sampling


class IncrementalDetokenizer(Protocol):
    """Converts tokens of one answer to text. Holds back text that may become a character or a stop string."""

    def push(self, token_id: int) -> TextDelta: ...

    def flush(self) -> str:
        """Return the text that is held back at the end of the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPlan:
    """One request as token ids and sizes: the complete input of a run on any worker."""

    model: str
    prompt_ids: Sequence[int]
    max_output_tokens: int  # granted for the whole answer, resumed tokens included
    sampling: Sampling  # always with a seed
    detokenizer: IncrementalDetokenizer  # has consumed the resumed ids, whose text the client has
    resumed_ids: Sequence[int] = ()  # tokens of the answer that the client has already
    resumed_stop: str = ""  # the stop string that the resumed ids ended with
    eos_ids: frozenset[int] = frozenset()  # empty if end-of-sequence tokens are ignored
    ignore_eos: bool = False
    block_size: int = 0  # tokens per KV block of the model, for the hashes of prompt prefixes
