"""Output format of one answer, its parser, and the answer as a whole."""

import hashlib
from dataclasses import dataclass
from functools import partial
from itertools import chain

from penstock.edge.output.events import (
    CallArguments,
    CallBroken,
    CallStarted,
    Event,
    ReasoningPart,
    TextPart,
)
from penstock.edge.output.formats import HERMES, ReasoningFormat, ToolFormat
from penstock.edge.output.reasoning import ReasoningSplitter
from penstock.edge.output.tool_calls import ToolCallParser
from penstock.edge.request import limits
from penstock.edge.request.tools import ToolCall

_ID_HEX_CHARS = 24


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How the text of one answer is to be divided."""

    tool_names: frozenset[str] = frozenset()  # tools that may be called; empty: there are no calls
    tool_format: ToolFormat = HERMES
    max_calls: int = limits.TOOL_CALLS
    reasoning: ReasoningFormat | None = None
    begins_in_reasoning: bool = False  # the prompt ends with the opening marker

    @property
    def is_plain(self) -> bool:
        """Whether all text is content."""
        return not self.tool_names and self.reasoning is None


PLAIN = OutputFormat()


class AnswerParser:
    """Divides the text of an answer, which arrives in pieces, into reasoning, content and tool calls."""

    __slots__ = ("_calls", "_reasoning")

    def __init__(self, output: OutputFormat) -> None:
        self._reasoning = (
            ReasoningSplitter(output.reasoning, is_open=output.begins_in_reasoning) if output.reasoning else None
        )
        self._calls = (
            ToolCallParser(output.tool_format, output.tool_names, max_calls=output.max_calls)
            if output.tool_names
            else None
        )

    def feed(self, text: str) -> list[Event]:
        reasoning, rest = self._reasoning.feed(text) if self._reasoning else ("", text)
        return self._events(reasoning, rest)

    def flush(self) -> list[Event]:
        """Return the end of the answer: what was held back."""
        reasoning, rest = self._reasoning.flush() if self._reasoning else ("", "")
        return self._events(reasoning, rest) + (self._calls.flush() if self._calls else [])

    def _events(self, reasoning: str, rest: str) -> list[Event]:
        events: list[Event] = [ReasoningPart(reasoning)] if reasoning else []
        if rest:
            events += self._calls.feed(rest) if self._calls else [TextPart(rest)]
        return events


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Broken calls are part of its text."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def parse_answer(output: OutputFormat, text: str, answer_id: str) -> Answer:
    parser = AnswerParser(output)
    texts: list[str] = []
    reasoning: list[str] = []
    names: dict[int, str] = {}
    arguments: dict[int, list[str]] = {}
    for event in chain(parser.feed(text), parser.flush()):
        match event:
            case TextPart(part):
                texts.append(part)
            case ReasoningPart(part):
                reasoning.append(part)
            case CallStarted(index, name):
                names[index], arguments[index] = name, []
            case CallArguments(index, part):
                arguments[index].append(part)
            case CallBroken(index):
                del names[index]
    new_id = partial(call_id, answer_id)
    calls = (ToolCall(new_id(index), name, "".join(arguments[index])) for index, name in names.items())
    return Answer("".join(texts), "".join(reasoning), tuple(calls))


def call_id(answer_id: str, index: int) -> str:
    """Return the id of the call with that index. It is the same if another edge resumes the answer."""
    digest = hashlib.blake2b(f"{answer_id}:{index}".encode(), digest_size=_ID_HEX_CHARS // 2)
    return f"call_{digest.hexdigest()}"
