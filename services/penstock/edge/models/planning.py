"""Planning: from a request spec to a generation plan with token ids, sizes and a seed.

Planning a long prompt takes long, so it runs in a thread.
"""

from collections.abc import Callable
from datetime import datetime

from penstock.chassis.errors import InvalidArgument
from penstock.edge.lifecycle.output import GenerationPlan
from penstock.edge.models.form_checks import FormRejected
from penstock.edge.models.loaded_model import LoadedModel
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.detokenizer import RecordingDetokenizer, StoppingDetokenizer
from penstock.edge.text.errors import TokenUnknown
from penstock.mesh.form_grammar import FormUnsupported
from penstock.mesh.forms import Form
from penstock.v1.inference_pb2 import Sampling


def plan_generation(
    spec: RequestSpec,
    model: LoadedModel,
    *,
    form: Form | None,
    now: datetime,
    default_output_tokens: int,
    draw_seed: Callable[[], int],
) -> GenerationPlan:
    """Return the plan of a request. Raises InvalidArgument if the prompt does not fit or an id is unknown.

    `form`: that the engine enforces, which includes required tool calls.
    """
    prompt_ids = model.codec.prompt_ids(spec.input, now)
    for position, token_id in enumerate(spec.resume_ids):
        if not 0 <= token_id < model.vocabulary_size:
            text = f"token id {token_id} at position {position} of the answer so far is not in the model's vocabulary"
            raise TokenUnknown(text, field="resume_ids")
    if form and not model.enforces_forms:
        raise FormRejected(FormUnsupported(f"the workers of {model.name} enforce none"))
    for token_id, _ in spec.logit_bias:
        if not 0 <= token_id < model.vocabulary_size:
            text = f"token id {token_id} of logit_bias is not in the model's vocabulary of {model.vocabulary_size}"
            raise TokenUnknown(text, field="logit_bias")
    output_format = model.codec.output_format(spec.input, spec.form)
    detokenizer: StoppingDetokenizer | RecordingDetokenizer
    detokenizer = model.codec.new_detokenizer(
        spec.input, prompt_ids, spec.stop, shows_markers=not output_format.is_plain
    )
    if output_format.tool_names:
        detokenizer = RecordingDetokenizer(detokenizer)
    resumed_stop = ""
    for token_id in spec.resume_ids:
        resumed_stop = resumed_stop or detokenizer.push(token_id).stop_string
    return GenerationPlan(
        model=model.name,
        prompt_ids=prompt_ids,
        max_output_tokens=_granted_output_tokens(spec, len(prompt_ids), model.context_length, default_output_tokens),
        sampling=_sampling(spec, draw_seed, model.vocabulary_size),
        detokenizer=detokenizer,
        resumed_ids=spec.resume_ids,
        resumed_stop=resumed_stop,
        eos_ids=frozenset() if spec.ignore_eos else model.eos_ids,
        ignore_eos=spec.ignore_eos,
        block_size=model.block_size,
        model_version=model.digest,
        form=form,
        output_format=output_format,
        describe_token=model.codec.tokenizer.describe,
        embedding_size=model.embedding_size if spec.embeds else 0,
    )


def _granted_output_tokens(
    spec: RequestSpec, prompt_tokens: int, context_length: int, default_output_tokens: int
) -> int:
    """Return the most tokens of the answer. Raises InvalidArgument with the sizes if they exceed the context."""
    left = context_length - prompt_tokens
    requested = spec.max_output_tokens
    if left < (requested or 1):
        wanted = f" and {requested} output tokens" if requested else ""
        raise InvalidArgument(
            f"{prompt_tokens} prompt tokens{wanted} do not fit the context of {context_length} tokens",
            field="input" if left < 1 else "max_output_tokens",
            reason="PROMPT_TOO_LONG",
            metadata={
                "prompt_tokens": str(prompt_tokens),
                "max_output_tokens": str(requested or 1),
                "context_length": str(context_length),
            },
        )
    return requested or min(left, default_output_tokens)


def _sampling(spec: RequestSpec, draw_seed: Callable[[], int], vocabulary_size: int) -> Sampling:
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
        top_logprobs=min(spec.top_logprobs, vocabulary_size),
        logit_bias=dict(spec.logit_bias),
    )
