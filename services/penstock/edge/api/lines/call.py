"""A line as a call of the API: its parsed body, and the id and the seed of its answer. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError

from penstock.chassis.errors import InvalidArgument
from penstock.chassis.streams.endpoint import FrameOutOfRange, check_message
from penstock.edge.api.openai.body.fields import Fields, parse_body, quoted
from penstock.edge.api.openai.chat import parse_chat
from penstock.edge.api.openai.common import ApiRequest
from penstock.edge.api.openai.completions import parse_completion
from penstock.edge.api.openai.embeddings import EmbeddingsRequest, parse_embeddings
from penstock.edge.api.openai.responses.response import parse_response
from penstock.edge.api.openai.serializers import chat_serializer, completion_serializer, responses_serializer
from penstock.edge.request.spec import RequestSpec
from penstock.edge.request.validation import validate
from penstock.mesh.limits.compiler import check_of
from penstock.mesh.v1.batch_pb2 import LineState, StartLine

EMBEDDINGS_ENDPOINT = "/v1/embeddings"
SEED_DIGITS = 16  # of a line's id, for a seed of 64 bits

Parse = Callable[[Fields, str], ApiRequest]


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """A line that generates text."""

    request: ApiRequest
    serializer_for: Callable[..., Any]
    fields: Fields
    begun: LineState | None = None  # what an earlier run has generated

    @property
    def has_own_timeout(self) -> bool:
        return self.request.spec.timeout_s is not None


@dataclass(frozen=True, slots=True)
class EmbeddingsCall:
    """A line that embeds its inputs."""

    request: EmbeddingsRequest
    fields: Fields
    has_own_timeout: bool = False


def _parse_response(fields: Fields, request_id: str) -> ApiRequest:
    for name in ("store", "background", "previous_response_id"):
        if fields.get(name):
            text = f"{name} is given, which lines of a batch cannot have: their answers go into its output file"
            raise InvalidArgument(f"{text}; leave it out", field=name)
    return parse_response(fields, request_id)


_GENERATING: Mapping[str, tuple[Parse, Callable[..., Any]]] = MappingProxyType(
    {
        "/v1/chat/completions": (parse_chat, chat_serializer),
        "/v1/completions": (parse_completion, completion_serializer),
        "/v1/responses": (_parse_response, responses_serializer),
    }
)


def parse_line(start: StartLine) -> GenerationCall | EmbeddingsCall:
    """Parse the body of a line. Raises InvalidArgument with the path of the field."""
    fields = parse_body(start.body)
    if start.endpoint == EMBEDDINGS_ENDPOINT:
        embeddings = parse_embeddings(fields, start.line_id)
        call = replace(
            embeddings.call,
            priority=start.priority,
            answer_id=start.line_id,
            is_first_run=not start.may_have_run,
        )
        return EmbeddingsCall(replace(embeddings, call=call), fields)
    if start.endpoint not in _GENERATING:
        raise InvalidArgument(f"lines cannot call {quoted(start.endpoint)}", field="endpoint")
    parse, serializer_for = _GENERATING[start.endpoint]
    request = parse(fields, start.line_id)
    if request.stream:
        raise InvalidArgument("stream is true; the answer of a line is whole, so leave it out", field="stream")
    seed = int(start.line_id[:SEED_DIGITS], 16) if request.spec.seed is None else request.spec.seed
    spec = replace(request.spec, seed=seed, priority=start.priority)
    call_of = partial(GenerationCall, serializer_for=serializer_for, fields=fields)
    if request.has_several_choices:  # each is an answer of its own; see `choice_of_line`
        return call_of(replace(request, spec=spec))
    spec = replace(spec, answer_id=start.line_id, is_first_run=not start.may_have_run)
    if state := _begun(start.progress, spec):
        try:
            resumed = resumed_spec(spec, state)
            validate(resumed)
        except InvalidArgument:
            return call_of(replace(request, spec=spec))
        return call_of(replace(request, spec=resumed), begun=state)
    return call_of(replace(request, spec=spec))


def choice_of_line(spec: RequestSpec, start: StartLine, choice: int) -> RequestSpec:
    """Return the spec of one of several answers of a line."""
    return replace(spec, answer_id=f"{start.line_id}-{choice}", is_first_run=not start.may_have_run)


def resumed_spec(spec: RequestSpec, state: LineState) -> RequestSpec:
    return replace(spec, model=state.model, model_version=state.model_version, resume_ids=tuple(state.token_ids))


def _begun(progress: bytes, spec: RequestSpec) -> LineState | None:
    """Return what an earlier run has generated; None if there is nothing, or if this edge cannot continue it."""
    try:
        state = LineState.FromString(progress)
        check_message(state, check_of(LineState.DESCRIPTOR))
    except (DecodeError, FrameOutOfRange):
        return None
    tokens = len(state.token_ids)
    is_whole = len(state.logprobs) == tokens * spec.logprobs and (
        len(state.top_token_ids) == len(state.top_logprobs) == tokens * spec.top_logprobs
    )
    return state if tokens and is_whole else None
