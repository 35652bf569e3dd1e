"""vLLM's sampling parameters of a sequence, as plain values."""

from typing import Any, NamedTuple

from penstock.worker.engine.batching.masks import TokenMask
from penstock.worker.engine.interface import AllowedChoices, AllowedTokens, SequenceSpec
from penstock.worker.engine.sampling.splitmix64 import mix64

_SEED_MASK = (1 << 63) - 1
EXTRA_ARGS_KEY = "penstock"  # key of ExtraParams in `extra_args`


class ExtraParams(NamedTuple):
    """Parameters of our logits processor, for features that vLLM does not have."""

    emitted: int  # number of the prompt's last ids that earlier runs emitted
    presence_penalty: float
    frequency_penalty: float
    choices: AllowedChoices | None
    end_ids: frozenset[int]
    mask: TokenMask | None  # of a form; the engine prepares it beside the step


def sampling_fields(spec: SequenceSpec, eos_ids: frozenset[int], mask: TokenMask | None = None) -> dict[str, Any]:
    """Return keyword arguments of `vllm.SamplingParams`. `mask`: of the sequence's form."""
    sampling = spec.sampling
    end_ids = spec.end_ids(eos_ids)
    extra = _extra(spec, end_ids, mask)
    fields: dict[str, Any] = {
        "max_tokens": spec.max_output_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": 0.0 if extra else sampling.presence_penalty,
        "frequency_penalty": 0.0 if extra else sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty or 1.0,
        "logit_bias": dict(sampling.logit_bias) or None,
        "logprobs": sampling.top_logprobs if sampling.logprobs else None,  # 0: only that of the drawn token
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,  # the model's own ids are in stop_token_ids
        "detokenize": False,
        "skip_clone": True,  # they are of one sequence, and a copy of its mask would not be the one that is prepared
    }
    if sampling.temperature > 0:
        fields["seed"] = _seed(spec)
    if isinstance(spec.constraint, AllowedTokens):
        fields["allowed_token_ids"] = sorted(spec.constraint.token_ids | end_ids)
    if extra:
        fields["extra_args"] = {EXTRA_ARGS_KEY: extra}
    return fields


def _extra(spec: SequenceSpec, end_ids: frozenset[int], mask: TokenMask | None) -> ExtraParams | None:
    """Return parameters of our logits processor; None if vLLM's own faster code suffices."""
    sampling = spec.sampling
    choices = spec.constraint if isinstance(spec.constraint, AllowedChoices) else None
    is_penalised = bool(sampling.presence_penalty or sampling.frequency_penalty)
    if choices is None and mask is None and not (is_penalised and spec.emitted):
        return None
    return ExtraParams(spec.emitted, sampling.presence_penalty, sampling.frequency_penalty, choices, end_ids, mask)


def _seed(spec: SequenceSpec) -> int:
    """Return the seed; a resumed run gets another, because the draws of the first run's start would repeat."""
    return (mix64(spec.seed ^ mix64(spec.emitted)) if spec.emitted else spec.seed) & _SEED_MASK
