"""Stored responses: their bodies, objects and items, as the Responses API has them."""

from collections.abc import Sequence
from typing import cast

import orjson

from penstock.edge.api.openai.body.fields import parse_body
from penstock.edge.api.openai.common import ApiRequest, Json, NumberedSerializer
from penstock.edge.api.openai.responses.input_items import input_items
from penstock.edge.api.openai.responses.response import ResponseObject, parse_response
from penstock.edge.api.openai.serializers import responses_serializer
from penstock.edge.stored.held import ParsedResponse
from penstock.edge.stored.stream import ResponseOutput
from penstock.mesh.v1.responses_pb2 import RESPONSE_STATUS_CANCELLED, ResponseStatus, StoredOutput, StoredRequest
from penstock.v1.inference_pb2 import Accepted

ID_PREFIX = "resp_"


class ResponsesFormat:
    """The format of stored responses."""

    def parse(self, body: StoredRequest, response_id: str, history: Sequence[Json]) -> ApiRequest:
        fields = parse_body(body.body)
        return parse_response(fields, response_id.removeprefix(ID_PREFIX), history, is_stored=True)

    def whole(
        self,
        request: ParsedResponse,
        created_at: int,
        output: ResponseOutput,
        status: "ResponseStatus.ValueType | None",
    ) -> bytes:
        """Return the object of a response. One that fails or is cancelled has the output so far."""
        assert isinstance(request, ApiRequest), "as it was parsed"
        accepted = accepted_of(request, output)
        if status is None:
            return orjson.dumps(ResponseObject(request, accepted, created_at).in_progress())
        serializer = serializer_of(request, created_at, output)
        if output.finished:
            if request.spec.logprobs:
                for index in range(len(output.log)):
                    serializer.collect_logprobs(output.log[index])
            return serializer.whole(accepted, output.log.text + output.rest, output.finished)
        serializer.begin(accepted)
        for index in range(len(output.log)):
            serializer.delta(output.log[index])
        return orjson.dumps(_response_of(end_of(serializer, output, status)))

    def items(self, body: StoredRequest, output: StoredOutput) -> list[Json]:
        given = orjson.loads(body.body).get("input") or []
        return input_items(given) + (orjson.loads(output.response)["output"] if output.response else [])


def accepted_of(request: ApiRequest, output: ResponseOutput) -> Accepted:
    """Return the acceptance of a response; a substitute if no edge has stored one."""
    return output.accepted or Accepted(request_id=request.spec.request_id, model=request.spec.model)


def serializer_of(request: ApiRequest, created_at: int, output: ResponseOutput) -> NumberedSerializer:
    return responses_serializer(request, created=created_at, output=output.format, describe=output.describe)


def end_of(serializer: NumberedSerializer, output: ResponseOutput, status: "ResponseStatus.ValueType | None") -> bytes:
    """Return the events of the end of a response."""
    if output.finished:
        return serializer.finish(output.finished)
    if output.error and status != RESPONSE_STATUS_CANCELLED:
        return serializer.fail(output.error)
    return serializer.cancel()


def _response_of(event: bytes) -> Json:
    """Return the response in an event of the end of a stream."""
    data = event.partition(b"data: ")[2]
    return cast("Json", orjson.loads(data)["response"])


def queued_object(request: ApiRequest, accepted: Accepted, created_at: int) -> bytes:
    return orjson.dumps(ResponseObject(request, accepted, created_at).queued())


def deleted_object(response_id: str) -> bytes:
    return orjson.dumps({"id": response_id, "object": "response", "deleted": True})
