"""The endpoint `POST /v1/embeddings`."""

import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import orjson

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe
from penstock.edge.api.openai.common import priority_of
from penstock.edge.api.openai.completions import inputs_of
from penstock.edge.embedder import Embedded, Encoding
from penstock.edge.request.embedding import EmbeddingCall, validate_call

_FIELD_NAMES: Mapping[str, str] = MappingProxyType({"inputs": "input"})


def _json_numbers(values: Sequence[float]) -> bytes:
    return orjson.dumps(list(values))


def _base64(values: Sequence[float]) -> bytes:
    """Return a JSON string of little-endian float32."""
    return b'"%b"' % b64encode(struct.pack(f"<{len(values)}f", *values))


_ENCODINGS: Mapping[object, Encoding[bytes]] = MappingProxyType(
    {"float": Encoding(_json_numbers, 24), "base64": Encoding(_base64, 6)}
)


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    call: EmbeddingCall
    encoding: Encoding[bytes]  # of a vector as JSON


def parse_embeddings(fields: Fields, request_id: str) -> EmbeddingsRequest:
    """Parse a body. Raises InvalidArgument with the path of the field."""
    name = fields.text("encoding_format") or "float"
    if name not in _ENCODINGS:
        allowed = " and ".join(map(str, _ENCODINGS))
        raise InvalidArgument(f"encoding_format is {describe(name)}; allowed are {allowed}", field="encoding_format")
    call = EmbeddingCall(
        request_id=request_id,
        model=fields.text("model"),
        inputs=inputs_of(fields.get("input"), "input"),
        dimensions=fields.integer("dimensions", None),
        priority=priority_of(fields),
    )
    validate_call(call, _FIELD_NAMES)
    return EmbeddingsRequest(call, _ENCODINGS[name])


def embedding_list(embedded: Embedded[bytes]) -> bytes:
    """Return the body of a response."""
    vectors = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % each for each in enumerate(embedded.vectors)
    )
    tokens = embedded.prompt_tokens
    rest = {"model": embedded.model.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return b'{"object":"list","data":[%b],%b' % (vectors, orjson.dumps(rest)[1:])
