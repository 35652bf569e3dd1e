"""Request messages from the options of the SDK."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, Unpack

from penstock.client.conversation import ToolOptions, Turn, chat_of
from penstock.v1.inference_pb2 import (
    CountTokensRequest,
    EmbedInput,
    EmbedRequest,
    Form,
    GenerateRequest,
    Priority,
    Sampling,
    TokenIds,
)

# Raw text; a conversation of {"role": .., "content": ..}; or ids of the model's own vocabulary.
Prompt: TypeAlias = str | Sequence[Turn] | Sequence[int]


class Options(ToolOptions, total=False):
    """Options of a request. All are optional, and None means absent. Ranges are those of `GenerateRequest`."""

    model: str
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int
    min_p: float
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logprobs: bool
    top_logprobs: int
    logit_bias: Mapping[int, float]
    stop: Sequence[str]
    timeout: float | None  # s for the whole answer including all retries
    priority: "Priority.ValueType"
    explain: bool
    request_id: str
    traceparent: str
    ignore_eos: bool
    form: Form | None  # of the output


CHAT_OPTIONS = frozenset(ToolOptions.__annotations__)
SAMPLING_FIELDS = frozenset(field.name for field in Sampling.DESCRIPTOR.fields)


def generate_request(prompt: Prompt, **options: Unpack[Options]) -> GenerateRequest:
    """Build a request. Raises TypeError for an unknown option and ValueError for an invalid value."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option: {', '.join(sorted(unknown))}")
    given = {name: value for name, value in options.items() if value is not None}
    timeout = given.pop("timeout", None)
    chat_options = {name: given.pop(name) for name in CHAT_OPTIONS & given.keys()}
    sampling = {name: given.pop(name) for name in SAMPLING_FIELDS & given.keys()}
    request = GenerateRequest(**given, sampling=Sampling(**sampling))  # type: ignore[arg-type]  # by name, typed above
    if timeout is not None:
        set_timeout(request, float(timeout))  # type: ignore[arg-type]  # as typed above
    _set_input(request, prompt, chat_options)
    return request


def set_timeout(request: GenerateRequest, seconds: float) -> None:
    request.timeout.FromNanoseconds(max(1, round(seconds * 1e9)))  # zero would mean no timeout


def count_request(prompt: str | Sequence[Turn], model: str) -> CountTokensRequest:
    if isinstance(prompt, str):
        return CountTokensRequest(model=model, text=prompt)
    return CountTokensRequest(model=model, chat=chat_of(prompt))


def embed_request(inputs: Sequence[str | Sequence[int]], model: str, dimensions: int | None) -> EmbedRequest:
    if isinstance(inputs, str):
        raise TypeError("inputs must be a sequence of texts or of token id lists, not one text")
    messages = [
        EmbedInput(text=each) if isinstance(each, str) else EmbedInput(token_ids=TokenIds(ids=each)) for each in inputs
    ]
    return EmbedRequest(model=model, inputs=messages, dimensions=dimensions)


def _set_input(request: GenerateRequest, prompt: Prompt, chat_options: Mapping[str, object]) -> None:
    if prompt and isinstance(prompt[0], Mapping):
        request.chat.CopyFrom(chat_of(prompt, **chat_options))  # type: ignore[arg-type]  # as its first element is
        return
    if chat_options:
        raise ValueError(f"{', '.join(sorted(chat_options))} need a conversation as the prompt")
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.CopyFrom(TokenIds(ids=prompt))  # type: ignore[arg-type]  # as its first element is
