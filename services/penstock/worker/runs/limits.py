"""Limits of a START, checked before the engine receives it."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.mesh.forms import Form, form_problem
from penstock.worker.engine.batching.errors import EmbeddingUnsupported, StartInvalid, check_spec
from penstock.worker.engine.interface import MAX_TOP_LOGPROBS, SamplingParams, SequenceSpec

CACHE_SALT_BYTES = 16
MAX_TOP_K = 1_024
MAX_BIASES = 300
MAX_BIAS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits that the engine reports once its model is loaded."""

    context_length: int  # tokens
    vocab_size: int  # token ids
    blocks: int  # KV blocks of the pool
    block_size: int  # tokens
    model: str = ""  # key
    embeds: bool = False  # whether the engine computes embeddings
    enforces_forms: bool = False  # whether the engine enforces the form of an output

    def check(self, spec: SequenceSpec) -> None:
        """Raise StartInvalid, PromptTooLong or EmbeddingUnsupported for a run that this engine can never run."""
        check_spec(spec, context_length=self.context_length, blocks=self.blocks, block_size=self.block_size)
        if max(spec.token_ids) >= self.vocab_size:  # the engine would index beyond its embedding
            raise StartInvalid(f"token id {max(spec.token_ids)} is outside the vocabulary of {self.vocab_size}")
        if len(spec.cache_salt) not in (0, CACHE_SALT_BYTES):
            raise StartInvalid(f"cache_salt has {len(spec.cache_salt)} bytes; it must have {CACHE_SALT_BYTES} or none")
        if isinstance(spec.constraint, Form):
            self._check_form(spec.constraint, ignore_eos=spec.ignore_eos)
        elif spec.constraint and max(spec.constraint.token_ids, default=0) >= self.vocab_size:
            raise StartInvalid(f"a token id of the constraint is outside the vocabulary of {self.vocab_size}")
        _check_sampling(spec.sampling)
        if not 0 <= spec.sampling.top_logprobs <= min(MAX_TOP_LOGPROBS, self.vocab_size):
            raise StartInvalid(f"sampling.top_logprobs is {spec.sampling.top_logprobs}, which is out of range")
        _check_biases(spec.sampling.logit_bias, self.vocab_size)
        if spec.embeds:
            self._check_embedding(spec)

    def _check_form(self, form: Form, *, ignore_eos: bool) -> None:
        if not self.enforces_forms:
            raise StartInvalid("this worker enforces no form of an output", field="form")
        if problem := form_problem(form):
            raise StartInvalid(f"form {problem}", field="form")
        if ignore_eos:
            raise StartInvalid("form cannot be enforced together with ignore_eos; leave one of them out", field="form")

    def _check_embedding(self, spec: SequenceSpec) -> None:
        if not self.embeds:
            raise EmbeddingUnsupported("this worker computes no embeddings")
        if spec.emitted or spec.constraint:
            raise StartInvalid("an embedding has no output; leave `emitted` and `form` out", field="embeds")


def _check_sampling(params: SamplingParams) -> None:
    """Check the range of each sampling field; the comparisons reject NaN, too."""
    allowed = (
        ("temperature", params.temperature, 0 <= params.temperature <= 2),
        ("top_p", params.top_p, 0 < params.top_p <= 1),
        ("top_k", params.top_k, 0 <= params.top_k <= MAX_TOP_K),
        ("min_p", params.min_p, 0 <= params.min_p <= 1),
        ("presence_penalty", params.presence_penalty, -2 <= params.presence_penalty <= 2),
        ("frequency_penalty", params.frequency_penalty, -2 <= params.frequency_penalty <= 2),
        ("repetition_penalty", params.repetition_penalty, 0 <= params.repetition_penalty <= 2),
    )
    for name, value, is_allowed in allowed:
        if not is_allowed:
            raise StartInvalid(f"sampling.{name} is {value}, which is out of range", field=f"sampling.{name}")


def _check_biases(biases: Sequence[tuple[int, float]], vocab_size: int) -> None:
    if len(biases) > MAX_BIASES:
        raise StartInvalid(f"sampling.logit_bias has {len(biases)} ids; at most {MAX_BIASES} are allowed")
    for token, bias in biases:
        if token >= vocab_size or not -MAX_BIAS <= bias <= MAX_BIAS:
            text = f"sampling.logit_bias is {bias} for id {token} of a vocabulary of {vocab_size}; it is out of range"
            raise StartInvalid(text, field="sampling.logit_bias")
