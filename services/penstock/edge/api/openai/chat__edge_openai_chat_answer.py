"""`/v1/chat/completions`: the answer."""

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.common__edge_openai_answer import Json, extra_members, finish_reason, usage_of
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest
from penstock.edge.api.openai.streaming__edge_openai_chunks import ChunkStream
from penstock.v1.inference_pb2 import Accepted, Delta, Finished


class ChatSerializer:
    """A chat completion: the role first, the finish reason last, then usage if asked for, then [DONE]."""

    __slots__ = ("_chunks", "_created", "_request")

    def __init__(self, request: ApiRequest, *, created: int) -> None:  # unix s
        self._request = request
        self._created = created

    def begin(self, accepted: Accepted) -> bytes:
        envelope = self._envelope(accepted, "chat.completion.chunk")
        self._chunks = ChunkStream(envelope, _content, self._request, accepted.prompt_tokens)
        return self._chunks.choice(_choice({"role": "assistant", "content": "", "refusal": None}))

    def delta(self, delta: Delta) -> bytes:
        return self._chunks.text(delta.text, len(delta.token_ids))

    def finish(self, finished: Finished) -> bytes:
        return self._chunks.end(_choice({}, finish_reason(finished)), finished)

    def fail(self, error: PenstockError) -> bytes:
        return self._chunks.fail(error)

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish_reason(finished),
        }
        envelope = self._envelope(accepted, "chat.completion")
        return orjson.dumps({**envelope, "choices": [choice], "usage": usage_of(finished), **extra_members(finished)})

    def _envelope(self, accepted: Accepted, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{accepted.request_id}",
            "object": kind,
            "created": self._created,
            "model": accepted.model,
        }


def _content(text: str) -> Json:
    return _choice({"content": text})


def _choice(delta: Json, reason: str | None = None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
