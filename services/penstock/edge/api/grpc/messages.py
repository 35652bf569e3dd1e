"""Conversion between the messages of the public API and the edge's values."""

from collections.abc import Mapping
from types import MappingProxyType

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.grpc.conversations import chat_of
from penstock.edge.request import limits
from penstock.edge.request.estimate import RequestEstimate, min_tokens_of_text, min_tokens_of_turns
from penstock.edge.request.spec import Prompt, RequestSpec, TextInput, TokenInput
from penstock.edge.request.validation import validate
from penstock.mesh.forms import CHOICES, Form, form_from
from penstock.v1.inference_pb2 import (
    Accepted,
    CountTokensRequest,
    Delta,
    Finished,
    GenerateRequest,
    GenerateResponse,
)

# Fields of the spec whose path in the API differs.
FIELD_PATHS: Mapping[str, str] = MappingProxyType(
    {
        **{
            name: f"sampling.{name}"
            for name in (
                *("temperature", "top_p", "top_k", "min_p", "seed"),
                *("presence_penalty", "frequency_penalty", "repetition_penalty"),
                *("top_logprobs", "logit_bias"),
            )
        },
        "tools": "chat.tools",
        "tool_choice": "chat.tool_choice",
        "timeout_s": "timeout",
        "resume_ids": "resume.token_ids",
        "answer_id": "resume.answer_id",
        "model_version": "resume.model_version",
    }
)
CHOSEN_ID_PATHS = MappingProxyType({**FIELD_PATHS, "answer_id": "answer_id"})  # of a request that names its answer


def spec_of(request: GenerateRequest) -> RequestSpec:
    """Return the spec of a request. Raises InvalidArgument with all violated limits."""
    _check_counts(request)
    sampling = request.sampling
    spec = RequestSpec(
        request_id=request.request_id,
        model=request.model,
        input=_prompt(request),
        temperature=sampling.temperature if sampling.HasField("temperature") else 1.0,
        top_p=sampling.top_p if sampling.HasField("top_p") else 1.0,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        seed=sampling.seed if sampling.HasField("seed") else None,
        max_output_tokens=request.max_output_tokens if request.HasField("max_output_tokens") else None,
        stop=tuple(request.stop),
        ignore_eos=request.ignore_eos,
        logprobs=sampling.logprobs or sampling.top_logprobs > 0,
        explain=request.explain,
        priority=request.priority,
        timeout_s=seconds_of(request.timeout) or None,
        resume_ids=tuple(request.resume.token_ids),
        answer_id=request.resume.answer_id or request.answer_id,
        is_first_run=not request.resume.answer_id,
        model_version=request.resume.model_version,
        form=_form(request),
        n=request.n or 1,
        top_logprobs=sampling.top_logprobs,
        logit_bias=tuple(sorted(sampling.logit_bias.items())),
    )
    validate(spec, FIELD_PATHS if request.resume.answer_id else CHOSEN_ID_PATHS)
    return spec


def _form(request: GenerateRequest) -> Form | None:
    if not request.HasField("form"):
        return None
    if len(request.form.choices.texts) > CHOICES:  # before they are copied
        raise InvalidArgument(
            f"form.choices has {len(request.form.choices.texts)} texts; at most {CHOICES} are allowed", field="form"
        )
    if (form := form_from(request.form)) is None:
        raise InvalidArgument("form has no kind; set one of its fields, or leave the form out", field="form")
    return form


def estimate_from_message(request: GenerateRequest) -> RequestEstimate:
    """Return the estimate of a request before it is copied or validated."""
    return RequestEstimate(
        request.request_id,
        request.model,
        request.priority,
        lambda: _min_prompt_tokens(request),
        request.max_output_tokens if request.HasField("max_output_tokens") else None,
        (seconds_of(request.timeout) or None) if request.HasField("timeout") else None,
        is_new=not request.HasField("resume"),
        model_version=request.resume.model_version if request.resume.token_ids else "",
    )


def count_spec_of(request: CountTokensRequest) -> RequestSpec:
    _check_counts(request)
    spec = RequestSpec(request_id="", model=request.model, input=_prompt(request))
    validate(spec, FIELD_PATHS)
    return spec


def response_of(event: Accepted | Delta | Finished) -> GenerateResponse:
    if isinstance(event, Delta):
        return GenerateResponse(delta=event)
    if isinstance(event, Accepted):
        return GenerateResponse(accepted=event)
    return GenerateResponse(finished=event)


def _min_prompt_tokens(request: GenerateRequest) -> int:
    match request.WhichOneof("input"):
        case "text":
            return min_tokens_of_text(request.text)
        case "chat":
            return min_tokens_of_turns(request.chat.messages)
        case _:
            return len(request.token_ids.ids)


def _check_counts(request: GenerateRequest | CountTokensRequest) -> None:
    """Reject lists that are too long before they are copied: 16 MiB of empty messages take 0.5 GiB as values."""
    counts = [
        ("input", len(request.chat.messages), limits.MESSAGES),
        ("tools", len(request.chat.tools), limits.TOOLS),
    ]
    if isinstance(request, GenerateRequest):
        counts += [
            ("input", len(request.token_ids.ids), limits.PROMPT_TOKENS),
            ("stop", len(request.stop), limits.STOP_STRINGS),
            ("resume.token_ids", len(request.resume.token_ids), limits.OUTPUT_TOKENS),
            ("sampling.logit_bias", len(request.sampling.logit_bias), limits.LOGIT_BIASES),
        ]
    for field, count, most in counts:
        if count > most:
            raise InvalidArgument(f"{field} has {count} entries; at most {most} are allowed", field=field)


def _prompt(request: GenerateRequest | CountTokensRequest) -> Prompt:
    match request.WhichOneof("input"):
        case "text":
            return TextInput(request.text)
        case "chat":
            return chat_of(request.chat)
        case "token_ids" if isinstance(request, GenerateRequest):
            return TokenInput(tuple(request.token_ids.ids))
        case _:
            raise InvalidArgument(
                "the request has no input; set one of its input fields", field="input", reason="INPUT_MISSING"
            )
