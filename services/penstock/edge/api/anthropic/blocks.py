"""Content blocks of an answer: text, thinking and tool_use."""

from collections.abc import Iterable, Iterator

import orjson

from penstock.edge.api.openai.common import Json
from penstock.edge.api.openai.streaming import named_sse_event, one_line_json, split_at_marker
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
from penstock.edge.request.tools import ToolCall

Piece = TextPart | ReasoningPart | ToolCall
TEXT, THINKING = "text", "thinking"
_MARKER = "\0delta"


class WholeCalls:
    """Collects each call of an answer until it is valid.

    Clients run the blocks of a message that are tool_use, however it ends. So a call that turns out to be broken must
    not become one: all of its text follows as text.
    """

    __slots__ = ("_answer_id", "_arguments", "_name", "count")

    def __init__(self, answer_id: str) -> None:
        self._answer_id = answer_id
        self._name = ""
        self._arguments: list[str] = []
        self.count = 0  # of valid calls

    def pieces(self, events: Iterable[Event]) -> Iterator[Piece]:
        for event in events:
            match event:
                case TextPart() | ReasoningPart():
                    yield event
                case CallStarted(_, name):
                    self._name, self._arguments = name, []
                case CallArguments(_, text):
                    self._arguments.append(text)
                case CallFinished(index):
                    self.count += 1
                    yield ToolCall(call_id(self._answer_id, index), self._name, "".join(self._arguments))
                case CallBroken():
                    pass


def content_blocks(pieces: Iterable[Piece]) -> list[Json]:
    """Return the blocks of a whole answer. An answer without any text has none."""
    blocks: list[Json] = []
    for piece in pieces:
        match piece:
            case ToolCall(call, name, arguments):
                blocks.append({**_tool_use(call, name), "input": orjson.loads(arguments)})
            case TextPart(text):
                _extend(blocks, TEXT, text)
            case ReasoningPart(text):
                _extend(blocks, THINKING, text)
    return blocks


def _extend(blocks: list[Json], kind: str, text: str) -> None:
    """Add text to the last block if it is of that kind, or else as a new one."""
    if not text:
        return
    if not blocks or blocks[-1]["type"] != kind:
        blocks.append(_empty_block(kind))
    blocks[-1][kind] += text


def _empty_block(kind: str) -> Json:
    # The signature of reasoning is for the API's own models. Clients require the member.
    return {"type": TEXT, "text": ""} if kind == TEXT else {"type": THINKING, "thinking": "", "signature": ""}


def _tool_use(call: str, name: str) -> Json:
    return {"type": "tool_use", "id": call, "name": name, "input": {}}


class BlockStream:
    """Serializes the blocks of a stream. At most one is open. Of its deltas, only the text is serialized each time."""

    __slots__ = ("_after", "_before", "_index", "_open_kind")

    def __init__(self) -> None:
        self._index = -1  # of the last block
        self._open_kind = ""  # of the open block, TEXT or THINKING; empty: none is open
        self._before = self._after = b""  # the parts of its deltas around the text

    def frames(self, piece: Piece) -> bytes:
        match piece:
            case TextPart(text):
                return self.text(TEXT, text)
            case ReasoningPart(text):
                return self.text(THINKING, text)
            case ToolCall(call, name, arguments):
                opening = self.close() + self._start(_tool_use(call, name))
                delta = self._delta({"type": "input_json_delta", "partial_json": arguments})
                return opening + delta + self._stop()

    def text(self, kind: str, text: str) -> bytes:
        """Return a delta, after the start of a block of that kind unless it is open."""
        if not text:
            return b""
        if kind == self._open_kind:
            return b"".join((self._before, one_line_json(text), self._after))
        opening = self.close() + self._start(_empty_block(kind))
        self._open_kind = kind
        marked = self._delta({"type": f"{kind}_delta", kind: _MARKER})
        self._before, self._after = split_at_marker(marked, _MARKER)
        return b"".join((opening, self._before, one_line_json(text), self._after))

    def close(self) -> bytes:
        """End the open block, if there is one."""
        if not self._open_kind:
            return b""
        self._open_kind = ""
        return self._stop()

    def _start(self, block: Json) -> bytes:
        self._index += 1
        return self._event("content_block_start", {"content_block": block})

    def _delta(self, delta: Json) -> bytes:
        return self._event("content_block_delta", {"delta": delta})

    def _stop(self) -> bytes:
        return self._event("content_block_stop", {})

    def _event(self, kind: str, members: Json) -> bytes:
        return named_sse_event(kind, {"type": kind, "index": self._index, **members})
