"""Responses whose text is divided into reasoning, messages and function calls."""

from collections.abc import Iterable
from itertools import chain

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.api.openai.common import AnyDelta, ApiRequest, Json, extra_members
from penstock.edge.api.openai.responses.output_items import Events, OutputItems, whole_items
from penstock.edge.api.openai.responses.response import ResponseObject
from penstock.edge.api.openai.streaming import named_sse_event
from penstock.edge.output.answer import AnswerParser, OutputFormat
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Finished


class StructuredResponsesSerializer:
    """Serializes a response with reasoning or function calls, which are items of their own.

    Its items have no log probabilities.
    """

    __slots__ = ("_created", "_items", "_number", "_output", "_parser", "_request", "_response")

    def __init__(self, request: ApiRequest, output: OutputFormat, *, created: int) -> None:  # unix s
        self._request = request
        self._output = output
        self._created = created
        self._number = 0  # of the next event

    @property
    def next_number(self) -> int:
        """The sequence number of the next event."""
        return self._number

    def begin(self, accepted: Accepted) -> bytes:
        self._parser = AnswerParser(self._output)
        self._items = OutputItems(accepted.request_id, accepted.answer_id)
        self._response = ResponseObject(self._request, accepted, self._created)
        begun = {"response": self._response.in_progress()}
        return self._serialized([("created", begun), ("in_progress", begun)])

    def on_model_changed(self, output: OutputFormat) -> None:
        self._parser = AnswerParser(output)

    def delta(self, delta: AnyDelta) -> bytes:
        return self._serialized(chain.from_iterable(map(self._items.apply, self._parser.feed(delta.text))))

    def collect_logprobs(self, delta: AnyDelta) -> None:
        """Does nothing."""

    def finish(self, finished: Finished) -> bytes:
        events: Events = [each for event in self._parser.flush() for each in self._items.apply(event)]
        events += self._items.end(_status(finished))
        response = self._response.ended(self._items.members("completed"), finished) | extra_members(finished)
        return self._serialized([*events, (response["status"], {"response": response})])

    def fail(self, error: PenstockError) -> bytes:
        response = self._response.failed(self._items.members("incomplete"), error)
        return self._serialized([("failed", {"response": response})])

    def cancel(self) -> bytes:
        response = self._response.cancelled(self._items.members("incomplete"))
        return self._serialized([("incomplete", {"response": response})])

    def whole(self, accepted: Accepted, text: str, finished: Finished) -> bytes:
        parser = AnswerParser(self._output)
        parts = chain(parser.feed(text), parser.flush())
        items = whole_items(parts, accepted.request_id, accepted.answer_id, _status(finished))
        response = ResponseObject(self._request, accepted, self._created).ended(items, finished)
        return orjson.dumps(response | extra_members(finished))

    def _serialized(self, events: Iterable[tuple[str, Json]]) -> bytes:
        return b"".join([self._event(name, members) for name, members in events])

    def _event(self, name: str, members: Json) -> bytes:
        kind = f"response.{name}"
        frame = named_sse_event(kind, {"type": kind, **members, "sequence_number": self._number})
        self._number += 1
        return frame


def _status(finished: Finished) -> str:
    """Return the status of the last item."""
    return "incomplete" if finished.reason == FINISH_REASON_LENGTH else "completed"
