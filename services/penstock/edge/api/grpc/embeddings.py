"""Conversion between the messages of `Embed` and the edge's values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.chassis.ids import new_id
from penstock.edge.embedder import Embedded, Encoding
from penstock.edge.request import limits
from penstock.edge.request.embedding import EmbeddingCall, validate_call
from penstock.edge.request.spec import TextInput, TokenInput
from penstock.v1.inference_pb2 import Embedding, EmbedInput, EmbedRequest, EmbedResponse, Usage

_FIELD_PATHS: Mapping[str, str] = MappingProxyType({"timeout_s": "timeout", "input": "inputs"})
BYTES_PER_FLOAT = 4
FLOATS: Encoding[Embedding] = Encoding(lambda values: Embedding(values=values), BYTES_PER_FLOAT)


def embedding_call_of(request: EmbedRequest) -> EmbeddingCall:
    """Return the call. Raises InvalidArgument with all violated limits."""
    _check_counts(request.inputs)
    call = EmbeddingCall(
        request_id=request.request_id or new_id(),
        model=request.model,
        inputs=tuple(map(_input, request.inputs)),
        dimensions=request.dimensions if request.HasField("dimensions") else None,
        timeout_s=seconds_of(request.timeout) or None,
        priority=request.priority,
    )
    validate_call(call, _FIELD_PATHS)
    return call


def embed_response_of(embedded: Embedded[Embedding]) -> EmbedResponse:
    return EmbedResponse(
        request_id=embedded.request_id,
        model=embedded.model.name,
        model_version=embedded.model.digest,
        embeddings=embedded.vectors,
        usage=Usage(prompt_tokens=embedded.prompt_tokens, cached_prompt_tokens=embedded.cached_tokens),
    )


def _check_counts(inputs: Sequence[EmbedInput]) -> None:
    """Reject lists that are too long before they are copied."""
    if len(inputs) > limits.EMBEDDING_INPUTS:
        text = f"inputs has {len(inputs)} entries; at most {limits.EMBEDDING_INPUTS} are allowed"
        raise InvalidArgument(text, field="inputs")
    count = sum(len(each.token_ids.ids) for each in inputs)
    if count > limits.PROMPT_TOKENS:
        text = f"inputs has {count} token ids; at most {limits.PROMPT_TOKENS} are allowed"
        raise InvalidArgument(text, field="inputs")


def _input(message: EmbedInput) -> TextInput | TokenInput:
    match message.WhichOneof("input"):
        case "text":
            return TextInput(message.text)
        case "token_ids":
            return TokenInput(tuple(message.token_ids.ids))
        case _:
            raise InvalidArgument("an input is empty; set one of its fields", field="inputs", reason="INPUT_MISSING")
