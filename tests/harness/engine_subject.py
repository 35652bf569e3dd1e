"""An engine under its contract: it runs sequences to their end, and finds what became of each in the results."""

import itertools
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from penstock.worker.engine.interface import SamplingParams, SequenceSpec
from penstock.worker.engine.model_card import ModelCard

PROMPT = (5, 9, 30, 31, 40, 41, 42, 7, 8, 90, 91, 92, 93, 17, 18, 19, 20, 21, 60, 61)
SAMPLED = SamplingParams(temperature=1.0)


@dataclass
class Subject:
    engine: object
    uses_model_scores: bool = True  # tokens follow a model's scores, so that biases and penalties have an effect
    resumes_draws: bool = True  # a resumed sampled text continues with the same tokens
    eos_ids: tuple[int, ...] = ()  # of its model
    card: ModelCard | None = None  # of an engine that enforces forms
    seq_ids: itertools.count = field(default_factory=lambda: itertools.count(1))

    def add(self, prompt=PROMPT, **fields):
        spec = SequenceSpec(
            seq_id=next(self.seq_ids), token_ids=list(prompt), **{"max_output_tokens": 8, "ignore_eos": True} | fields
        )
        self.engine.add(spec)
        return spec.seq_id

    def run_to_end(self):
        results = []
        while self.engine.has_work:
            results.append(self.engine.step())
        return results

    def text(self, prompt=PROMPT, **fields):
        seq_id = self.add(prompt, **fields)
        return tokens_of(self.run_to_end(), seq_id)

    def decoded(self, ids):
        return Tokenizer.from_str(self.card.tokenizer_json).decode(ids, skip_special_tokens=False)


def tokens_of(results, seq_id):
    return [token for each in results for seq, token in zip(each.seq_ids, each.tokens, strict=True) if seq == seq_id]


def indexes_of(results, seq_id):
    return [index for each in results for seq, index in zip(each.seq_ids, each.indexes, strict=True) if seq == seq_id]


def raised_error(add, error):
    """The error that `add` raises."""
    try:
        add()
    except error as rejection:
        return rejection
    raise AssertionError(f"was taken, though {error.__name__} was due")
