"""From what a caller asks to what a worker can run: ids, sizes and a seed. Slow for long prompts; use a thread."""

from array import array
from collections.abc import Callable
from datetime import datetime

from penstock.chassis.errors import InvalidArgument
from penstock.edge.lifecycle.plan import GenerationPlan
from penstock.edge.models.catalog import LoadedModel
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.errors import TokenUnknown
from penstock.v1.inference_pb2 import Sampling


def plan_generation(
    spec: RequestSpec, model: LoadedModel, *, now: datetime, default_output_tokens: int, draw_seed: Callable[[], int]
) -> GenerationPlan:
    """Raises InvalidArgument for what this model cannot do: prompts that do not fit, ids it does not have."""
    prompt_ids = array("I", model.codec.prompt_ids(spec.input, now))
    for position, token_id in enumerate(spec.resume_ids):
        if not 0 <= token_id < model.vocabulary_size:
            text = f"token id {token_id} at position {position} of the answer so far is not in the model's vocabulary"
            raise TokenUnknown(text, field="resume_ids")
    transcript = model.codec.new_detokenizer(spec.input, prompt_ids, spec.stop)
    resumed_stop = ""
    for token_id in spec.resume_ids:
        resumed_stop = resumed_stop or transcript.push(token_id).stop_string
    return GenerationPlan(
        model=model.name,
        prompt_ids=prompt_ids,
        max_output_tokens=_granted_output_tokens(spec, len(prompt_ids), model.context_length, default_output_tokens),
        sampling=_sampling(spec, draw_seed),
        detokenizer=transcript,
        resumed_ids=spec.resume_ids,
        resumed_stop=resumed_stop,
        eos_ids=frozenset() if spec.ignore_eos else model.eos_ids,
        ignore_eos=spec.ignore_eos,
        block_size=model.block_size,
    )


def _granted_output_tokens(
    spec: RequestSpec, prompt_tokens: int, context_length: int, default_output_tokens: int
) -> int:
    """Return how long the answer may be; raises InvalidArgument with the numbers when it cannot fit."""
    left = context_length - prompt_tokens
    asked = spec.max_output_tokens
    if left < (asked or 1):
        wanted = f" and {asked} output tokens" if asked else ""
        raise InvalidArgument(
            f"{prompt_tokens} prompt tokens{wanted} do not fit the context of {context_length} tokens",
            field="input" if left < 1 else "max_output_tokens",
            reason="PROMPT_TOO_LONG",
            metadata={
                "prompt_tokens": str(prompt_tokens),
                "max_output_tokens": str(asked or 1),
                "context_length": str(context_length),
            },
        )
    return asked or min(left, default_output_tokens)


def _sampling(spec: RequestSpec, draw_seed: Callable[[], int]) -> Sampling:
    return Sampling(
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        min_p=spec.min_p,
        seed=draw_seed() if spec.seed is None else spec.seed,
        presence_penalty=spec.presence_penalty,
        frequency_penalty=spec.frequency_penalty,
        repetition_penalty=spec.repetition_penalty,
        logprobs=spec.logprobs,
    )
