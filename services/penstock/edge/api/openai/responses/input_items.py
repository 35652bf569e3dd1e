"""Input of a response: a text, or items, from which the turns of the conversation are made."""

from collections.abc import Sequence
from typing import Any

from penstock.chassis.errors import InvalidArgument
from penstock.edge.api.openai.body.fields import Fields, describe, wrong_type
from penstock.edge.api.openai.body.messages import content_text, message_from
from penstock.edge.request import limits
from penstock.edge.request.spec import Message
from penstock.edge.request.tools import ToolCall

MAX_PAGE_ITEMS = 100
_KINDS = "message, function_call, function_call_output and reasoning"


def input_messages(given: Any, history: Sequence[Any] = ()) -> tuple[Message, ...]:
    """Return the turns of an input, after those of earlier items. Raises InvalidArgument with the path of the field."""
    match given:
        case None | []:
            raise InvalidArgument("input is missing; give a string or a list of messages", field="input")
        case str() if not history:
            return (Message("user", given),)
        case str() | list():
            turns = _Turns()
            for index, each in enumerate(history):
                turns.add(each, f"item {index} before the input")
            for index, each in enumerate(input_items(given)):
                turns.add(each, f"input[{index}]")
            return turns.messages
        case _:
            raise wrong_type("input", "a string or a list of messages", given)


def input_items(given: str | list[Any]) -> list[Any]:
    """Return an input as items."""
    return given if isinstance(given, list) else [{"type": "message", "role": "user", "content": given}]


class _Turns:
    """Turns made of items. Reasoning and calls belong to the turn of the assistant that they stand beside."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._reasoning: list[str] = []  # of the assistant's next turn

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def add(self, item: Any, path: str) -> None:
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        match kind:
            case "message":
                self._add_turn(message_from(item, path))
            case "function_call":
                self._add_call(Fields(item, path))
            case "function_call_output":
                fields = Fields(item, path)
                output = content_text(fields.get("output"), fields.path("output"))
                self._add_turn(Message("tool", output, tool_call_id=_required(fields, "call_id")))
            case "reasoning":
                if text := _reasoning_text(Fields(item, path)):
                    self._reasoning.append(text)
            case _:
                raise InvalidArgument(
                    f"{path}.type is {describe(kind)}; this server accepts {_KINDS}", field=f"{path}.type"
                )

    def _add_turn(self, message: Message) -> None:
        if self._reasoning and message.role == "assistant":
            message, self._reasoning = message._replace(reasoning="".join(self._reasoning)), []
        self._messages.append(message)

    def _add_call(self, fields: Fields) -> None:
        call = ToolCall(_required(fields, "call_id"), fields.text("name"), fields.text("arguments") or "{}")
        if not self._messages or self._messages[-1].role != "assistant" or self._reasoning:
            self._add_turn(Message("assistant", ""))
        last = self._messages[-1]
        if len(last.tool_calls) == limits.TOOL_CALLS:  # copied for each call, so their number is bounded here
            text = f"input has more than {limits.TOOL_CALLS} tool calls in one turn of the assistant"
            raise InvalidArgument(text, field="input")
        self._messages[-1] = last._replace(tool_calls=(*last.tool_calls, call))


def _required(fields: Fields, name: str) -> str:
    if not (value := fields.text(name)):
        raise InvalidArgument(f"{fields.path(name)} is missing", field=fields.path(name))
    return value


def _reasoning_text(fields: Fields) -> str:
    """Return the text of a reasoning item; that of its summary if it has no other."""
    texts = [_part_texts(fields, name) for name in ("content", "summary")]
    return texts[0] or texts[1]


def _part_texts(fields: Fields, name: str) -> str:
    parts = fields.get(name) or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise wrong_type(fields.path(name), "a list of text parts", parts)
    return "\n".join([Fields(part, fields.path(name)).text("text") for part in parts])


def item_page(given: Any, response_id: str, *, order: str, after: str, limit: int) -> dict[str, Any]:
    """Return a page of the items of a stored input, as the API lists them. `order`: asc or desc."""
    if order not in ("asc", "desc"):
        raise InvalidArgument(f"order is {describe(order)}; allowed are asc and desc", field="order")
    if not 1 <= limit <= MAX_PAGE_ITEMS:
        raise InvalidArgument(f"limit is {limit}; allowed is 1 to {MAX_PAGE_ITEMS}", field="limit")
    items = [_listed(each, f"item_{response_id}_{index}") for index, each in enumerate(input_items(given or []))]
    if order == "desc":
        items.reverse()
    ids = [each["id"] for each in items]
    start = ids.index(after) + 1 if after in ids else 0
    page = items[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": start + limit < len(items),
    }


def _listed(item: Any, item_id: str) -> dict[str, Any]:
    """Return an item with its id, and a message with its content as parts."""
    listed = {"id": item_id, "type": "message", **item}
    if listed["type"] == "message":
        content = listed.get("content")
        kind = "output_text" if listed.get("role") == "assistant" else "input_text"
        listed["status"] = "completed"
        if isinstance(content, str):
            listed["content"] = [{"type": kind, "text": content}]
    return listed
