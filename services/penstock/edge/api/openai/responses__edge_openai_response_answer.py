"""`/v1/responses`: the answer."""

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai import streaming__edge_openai_sse
from penstock.edge.api.openai.common__edge_openai_answer import Json, extra_members
from penstock.edge.api.openai.common__edge_openai_request import ApiRequest
from penstock.edge.api.openai.responses__edge_openai_response_object import ResponseObject, text_part
from penstock.v1.inference_pb2 import Accepted, Delta, Finished

_MARKER = "\0delta"
_CONTENT_POSITION: Json = {"output_index": 0, "content_index": 0}  # an answer is one message of one part
_SEQUENCE_NUMBER_KEY = b',"sequence_number":'


class ResponsesSerializer:
    """A response: every event is named, typed and numbered, and the last one carries the whole response."""

    __slots__ = ("_after", "_before", "_created", "_number", "_request", "_response", "_texts")

    def __init__(self, request: ApiRequest, *, created: int) -> None:  # unix s
        self._request = request
        self._created = created
        self._number = 0  # of the next event
        self._texts: list[str] = []

    def begin(self, accepted: Accepted) -> bytes:
        self._response = ResponseObject(self._request, accepted, self._created)
        item = {"output_index": 0, "item": self._response.message("in_progress", [])}
        opening = (
            self._event("created", {"response": self._response.in_progress()})
            + self._event("in_progress", {"response": self._response.in_progress()})
            + self._event("output_item.added", item)
            + self._event("content_part.added", self._of_item({"part": text_part("")}))
        )
        self._prepare_deltas()
        return opening

    def delta(self, delta: Delta) -> bytes:
        if not delta.text:
            return b""
        self._texts.append(delta.text)
        number = b"%d" % self._number
        self._number += 1
        return b"".join((self._before, orjson.dumps(delta.text), _SEQUENCE_NUMBER_KEY, number, self._after))

    def finish(self, finished: Finished) -> bytes:
        text = "".join(self._texts)
        response = self._response.ended(text, finished) | extra_members(finished)
        return (
            self._event("output_text.done", self._of_item({"text": text, "logprobs": []}))
            + self._event("content_part.done", self._of_item({"part": text_part(text)}))
            + self._event("output_item.done", {"output_index": 0, "item": response["output"][0]})
            + self._event(response["status"], {"response": response})
        )

    def fail(self, error: PenstockError) -> bytes:
        return self._event("failed", {"response": self._response.failed("".join(self._texts), error)})

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        response = ResponseObject(self._request, accepted, self._created)
        return orjson.dumps(response.ended(text, finished) | extra_members(finished))

    def _of_item(self, members: Json) -> Json:
        return {"item_id": self._response.item_id, **_CONTENT_POSITION, **members}

    def _event(self, name: str, members: Json) -> bytes:
        kind = f"response.{name}"
        frame = streaming__edge_openai_sse.named_sse_event(
            kind, {"type": kind, **members, "sequence_number": self._number}
        )
        self._number += 1
        return frame

    def _prepare_deltas(self) -> None:
        kind = "response.output_text.delta"
        payload = {"type": kind, **self._of_item({"logprobs": [], "delta": _MARKER})}
        self._before, self._after = streaming__edge_openai_sse.split_at_marker(
            streaming__edge_openai_sse.named_sse_event(kind, payload), _MARKER
        )
