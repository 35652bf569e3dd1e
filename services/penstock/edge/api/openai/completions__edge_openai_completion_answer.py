"""`/v1/completions`: the answer."""

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.common__edge_openai_answer import Json, extra_members, finish_reason, usage_of
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest
from penstock.edge.api.openai.streaming__edge_openai_chunks import ChunkStream
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


class CompletionSerializer:
    """A text completion: chunks have the shape of the whole, the last one the finish reason."""

    __slots__ = ("_chunks", "_created", "_request")

    def __init__(self, request: ApiRequest, *, created: int) -> None:  # unix s
        self._request = request
        self._created = created

    def begin(self, accepted: Accepted) -> bytes:
        self._chunks = ChunkStream(self._envelope(accepted), _choice, self._request, accepted.prompt_tokens)
        return b""

    def delta(self, delta: Delta) -> bytes:
        return self._chunks.text(delta.text, len(delta.token_ids))

    def finish(self, finished: Finished) -> bytes:
        return self._chunks.end(_choice("", finish_reason(finished)), finished)

    def fail(self, error: PenstockError) -> bytes:
        return self._chunks.fail(error)

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        choice = _choice(text, finish_reason(finished))
        return orjson.dumps(
            {**self._envelope(accepted), "choices": [choice], "usage": usage_of(finished), **extra_members(finished)}
        )

    def _envelope(self, accepted: Accepted) -> Json:
        return {
            "id": f"cmpl-{accepted.request_id}",
            "object": "text_completion",
            "created": self._created,
            "model": accepted.model,
        }


def _choice(text: str, reason: str | None = None) -> Json:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
