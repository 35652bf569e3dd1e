"""Output items of a response: reasoning, messages and function calls, with the events of their stream."""

from collections.abc import Iterable
from typing import Protocol

from penstock.edge.api.openai.common import Json
from penstock.edge.output.answer import call_id
from penstock.edge.output.events import (
    CallArguments,
    CallBroken,
    CallFinished,
    CallStarted,
    Event,
    ReasoningPart,
    TextPart,
)

Events = list[tuple[str, Json]]  # name without `response.`, and members


class _Item(Protocol):
    def opening(self) -> Events: ...

    def delta(self, text: str) -> Events: ...

    def closing(self, status: str) -> Events: ...

    def member(self, status: str) -> Json: ...


class _TextItem:
    """A message or a reasoning item, which has one part."""

    __slots__ = ("_id", "_kind", "_position", "_texts")

    def __init__(self, kind: str, item_id: str, output_index: int) -> None:
        self._kind = kind  # output_text or reasoning_text
        self._id = item_id
        self._position: Json = {"item_id": item_id, "output_index": output_index, "content_index": 0}
        self._texts: list[str] = []

    def opening(self) -> Events:
        added = {"output_index": self._position["output_index"], "item": self._member("in_progress", [])}
        return [("output_item.added", added), ("content_part.added", {**self._position, "part": self._part("")})]

    def delta(self, text: str) -> Events:
        self._texts.append(text)
        return [(f"{self._kind}.delta", {**self._position, **self._logprobs, "delta": text})]

    def closing(self, status: str) -> Events:
        text = "".join(self._texts)
        done = {"output_index": self._position["output_index"], "item": self.member(status)}
        return [
            (f"{self._kind}.done", {**self._position, **self._logprobs, "text": text}),
            ("content_part.done", {**self._position, "part": self._part(text)}),
            ("output_item.done", done),
        ]

    def member(self, status: str) -> Json:
        return self._member(status, [self._part("".join(self._texts))])

    @property
    def _logprobs(self) -> Json:
        return {"logprobs": []} if self._kind == "output_text" else {}

    def _part(self, text: str) -> Json:
        if self._kind == "output_text":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "reasoning_text", "text": text}

    def _member(self, status: str, content: list[Json]) -> Json:
        if self._kind == "output_text":
            return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}
        return {"id": self._id, "type": "reasoning", "summary": [], "status": status, "content": content}


class _CallItem:
    """A function call."""

    __slots__ = ("_arguments", "_call_id", "_id", "_name", "_output_index")

    def __init__(self, name: str, item_id: str, call: str, output_index: int) -> None:
        self._name = name
        self._id = item_id
        self._call_id = call
        self._output_index = output_index
        self._arguments: list[str] = []

    def opening(self) -> Events:
        return [("output_item.added", {"output_index": self._output_index, "item": self.member("in_progress")})]

    def delta(self, text: str) -> Events:
        self._arguments.append(text)
        members = {"item_id": self._id, "output_index": self._output_index, "delta": text}
        return [("function_call_arguments.delta", members)]

    def closing(self, status: str) -> Events:
        item = self.member(status)
        done = {"item_id": self._id, "output_index": self._output_index, "arguments": item["arguments"]}
        return [
            ("function_call_arguments.done", {**done, "name": self._name}),
            ("output_item.done", {"output_index": self._output_index, "item": item}),
        ]

    def member(self, status: str) -> Json:
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._arguments),
            "status": status,
        }


class OutputItems:
    """Makes items of the parts of an answer, and the events of their stream. One item is open at a time."""

    def __init__(self, request_id: str, answer_id: str) -> None:
        self._request_id = request_id
        self._answer_id = answer_id
        self._closed: list[Json] = []
        self._open: _Item | None = None
        self._open_kind = ""

    def apply(self, event: Event) -> Events:
        match event:
            case TextPart(text):
                return self._text("output_text", "msg", text)
            case ReasoningPart(text):
                return self._text("reasoning_text", "rs", text)
            case CallStarted(index, name):
                call, position = call_id(self._answer_id, index), self._position
                return self._replace(_CallItem(name, f"fc_{self._request_id}_{position}", call, position), "call")
            case CallArguments(_, text):
                return self._open.delta(text) if self._open else []
            case CallFinished():
                return self._close("completed")
            case CallBroken():
                return self._close("incomplete")

    def end(self, status: str) -> Events:
        """Close the last item. An answer without any item gets an empty message."""
        events = [] if self._closed or self._open else self._text("output_text", "msg", "")
        return events + self._close(status)

    def members(self, status: str) -> list[Json]:
        """Return all items. `status` is that of an open one."""
        return [*self._closed, *([self._open.member(status)] if self._open else [])]

    @property
    def _position(self) -> int:
        """Index of the next item that is opened."""
        return len(self._closed) + (self._open is not None)

    def _text(self, kind: str, prefix: str, text: str) -> Events:
        events: Events = []
        if self._open_kind != kind:
            position = self._position
            suffix = f"_{position}" if position else ""
            events = self._replace(_TextItem(kind, f"{prefix}_{self._request_id}{suffix}", position), kind)
        assert self._open, "the item was just opened"
        return events + (self._open.delta(text) if text else [])

    def _replace(self, item: _Item, kind: str) -> Events:
        events = self._close("completed")
        self._open, self._open_kind = item, kind
        return events + item.opening()

    def _close(self, status: str) -> Events:
        if not self._open:
            return []
        events = self._open.closing(status)
        self._closed.append(self._open.member(status))
        self._open, self._open_kind = None, ""
        return events


def whole_items(events: Iterable[Event], request_id: str, answer_id: str, status: str) -> list[Json]:
    """Return the items of a whole answer. Calls that are broken are left out: their text is in a message."""
    items = OutputItems(request_id, answer_id)
    kept: list[Event] = []
    for event in events:
        if isinstance(event, CallBroken):
            while not isinstance(kept.pop(), CallStarted):
                pass
        else:
            kept.append(event)
    for event in kept:
        items.apply(event)
    items.end(status)
    return items.members(status)
