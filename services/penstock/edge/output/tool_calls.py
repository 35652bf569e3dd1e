"""Incremental parser of tool calls in the text of a model."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.edge.output.events import CallArguments, CallBroken, CallFinished, CallStarted, Event, TextPart
from penstock.edge.output.formats import ToolFormat
from penstock.edge.output.json_scanner import JsonScanner, Scan
from penstock.edge.output.markers import held_from
from penstock.edge.request.tools import is_json_object

MAX_HEAD_CHARS = 512  # of an object up to its arguments, if they are to be streamed
_HEAD = r'\{\s*"name"\s*:\s*"([A-Za-z0-9_-]{1,64})"\s*,\s*"%s"\s*:\s*(?=\{)'
MAX_NAMED_HEAD_CHARS = 256  # between a marker and the arguments of a call that is no JSON object
_NAMED_HEAD = r"\s*([A-Za-z0-9_-]{1,64})(?:\[CALL_ID\]\w+)?\s*(?:%s)?\s*"
Step = Callable[[list[Event]], bool]


@dataclass(slots=True)
class _Object:
    """A JSON object in work, which may be a call."""

    parts: list[str] = field(default_factory=list)
    scanner: JsonScanner = field(default_factory=JsonScanner)
    head: str = ""  # the first characters
    is_started: bool = False  # a call with its name was reported
    is_in_arguments: bool = False
    arguments_depth: int = 1  # of open brackets around the arguments
    name: str = ""  # of the call, if the object is its arguments


class ToolCallParser:
    """Finds calls of known tools in a text that arrives in pieces.

    A call is reported as soon as its name is known and its arguments begin; they are passed on as they arrive. Anything
    else is text, unchanged, except for whitespace before a call and at the end of an answer with calls. Text is held
    back only while it may be the start of a call. The events do not depend on how the text is divided, except that
    texts and arguments may be divided themselves.
    """

    __slots__ = (
        "_buffer",
        "_calls",
        "_expects_list",
        "_format",
        "_head_pattern",
        "_max_calls",
        "_named_head_pattern",
        "_names",
        "_object",
        "_raw",
        "_step",
    )

    def __init__(self, tool_format: ToolFormat, names: frozenset[str], *, max_calls: int) -> None:
        self._format = tool_format
        self._names = names
        self._max_calls = max_calls
        self._head_pattern = re.compile(_HEAD % tool_format.arguments_key)
        self._named_head_pattern = re.compile(_NAMED_HEAD % re.escape(tool_format.arguments_marker))
        self._buffer = ""  # text that no step has taken yet
        self._calls = 0  # that were started
        self._raw: list[str] = []  # text of the call in work before its object
        self._expects_list = False
        self._step: Step = self._begin_answer if tool_format.can_begin_bare else self._find_call
        self._object = _Object()

    def feed(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._buffer and self._step(events):
            pass
        return events

    def flush(self) -> list[Event]:
        """Return the end of the answer: what was held back."""
        rest, self._buffer = self._buffer, ""
        if self._step == self._end_call or (not self._raw and not rest.strip() and self._calls):
            return []
        if self._step in (self._begin_answer, self._find_call):
            return [TextPart(rest)] if rest else []
        events: list[Event] = []
        self._break_call(events, rest)
        return events

    # Steps. Each takes text from the buffer, and returns False if it needs more.

    def _begin_answer(self, events: list[Event]) -> bool:
        """Find a call without a marker at the start of the answer."""
        begun = self._buffer.lstrip()
        if begun.startswith("{"):
            self._take_raw(len(self._buffer) - len(begun))
            self._step = self._parse_object
        elif self._format.begin.startswith(begun):
            return False
        else:
            self._step = self._find_call
        return True

    def _find_call(self, events: list[Event]) -> bool:
        if self._calls >= self._max_calls:
            text, self._buffer = self._buffer, ""
        else:
            at = self._buffer.find(self._format.begin)
            end = held_from(self._buffer, self._format.begin) if at < 0 else len(self._buffer[:at].rstrip())
            text, self._buffer = self._buffer[:end], self._buffer[end:]
            if at >= 0:
                self._take_raw(at - end + len(self._format.begin))
                self._expects_list = bool(self._format.list_open)
                self._step = self._open_call
        if text:
            events.append(TextPart(text))
        return self._step == self._open_call

    def _open_call(self, events: list[Event]) -> bool:
        """Take what stands between a marker, or a separator, and the object."""
        if self._format.arguments_marker:
            return self._open_named_call(events)
        begun = self._buffer.lstrip()
        if not begun:
            return False
        begin = len(self._buffer) - len(begun)
        if self._expects_list and begun.startswith(self._format.list_open):
            self._expects_list = False
            self._take_raw(begin + len(self._format.list_open))
        elif not self._expects_list and begun.startswith("{"):
            self._take_raw(begin)
            self._step = self._parse_object
        else:
            self._break_call(events)
        return True

    def _open_named_call(self, events: list[Event]) -> bool:
        """Take the name of a call up to its arguments."""
        size = self._buffer.find("{", 0, MAX_NAMED_HEAD_CHARS)
        if size < 0 and len(self._buffer) < MAX_NAMED_HEAD_CHARS:
            return False
        found = self._named_head_pattern.fullmatch(self._buffer, 0, max(size, 0))
        if found is None or found[1] not in self._names:
            self._break_call(events)
            return True
        self._take_raw(size)
        self._object = _Object(is_started=True, is_in_arguments=True, arguments_depth=0, name=found[1])
        self._report_start(found[1], events)
        self._step = self._parse_object
        return True

    def _parse_object(self, events: list[Event]) -> bool:
        text, self._buffer = self._buffer, ""
        if not self._object.is_started:
            text = self._start_call(text, events)
        call = self._object
        while text:
            depth = call.arguments_depth if call.is_in_arguments else 0
            scan = call.scanner.scan(text, depth)
            part, text = text[: call.scanner.position], text[call.scanner.position :]
            call.parts.append(part)
            if call.is_in_arguments:
                if part:  # else they were invalid from here on
                    events.append(CallArguments(self._calls - 1, part))
                call.is_in_arguments = scan is Scan.INCOMPLETE
            if scan is Scan.INVALID:
                self._buffer = text
                self._break_call(events)
                return True
            if scan is Scan.CLOSED and depth == 0:
                self._buffer = text
                self._end_object(events)
                return True
        return False

    def _end_call(self, events: list[Event]) -> bool:
        """Take what follows a complete call: the end marker, or a separator and the next call."""
        ending, separator = self._format.end, self._format.separator
        begun = self._buffer.lstrip()
        if not begun:
            return False
        if ending and begun.startswith(ending):
            self._buffer = begun.removeprefix(ending)
            self._step = self._find_call
        elif ending.startswith(begun):
            return False
        elif separator and begun.startswith(separator) and self._calls < self._max_calls:
            self._take_raw(len(self._buffer) - len(begun) + len(separator))
            self._step = self._open_call
        else:
            self._step = self._find_call
        return True

    # Parts of steps.

    def _start_call(self, text: str, events: list[Event]) -> str:
        """Report a call if the object so far reaches its arguments. Returns the text that is not scanned yet."""
        head = self._object.head
        self._object.head += text[: MAX_HEAD_CHARS - len(head)]
        found = self._head_pattern.match(self._object.head)
        if found is None or found[1] not in self._names:
            return text
        self._object = _Object([found[0]], JsonScanner(depth=1), is_started=True, is_in_arguments=True)
        self._report_start(found[1], events)
        return text[found.end() - len(head) :]

    def _end_object(self, events: list[Event]) -> None:
        """Report the call of a complete object."""
        text, name = "".join(self._object.parts), self._object.name
        call = (
            _call_in(text, self._format.arguments_key) if not name else (name, text) if is_json_object(text) else None
        )
        if call is None or call[0] not in self._names:
            self._break_call(events)
            return
        if not self._object.is_started:
            self._report_start(call[0], events)
            events.append(CallArguments(self._calls - 1, call[1]))
        events.append(CallFinished(self._calls - 1))
        self._raw.clear()
        self._object = _Object()
        self._step = self._end_call

    def _report_start(self, name: str, events: list[Event]) -> None:
        events.append(CallStarted(self._calls, name))
        self._calls += 1

    def _break_call(self, events: list[Event], rest: str = "") -> None:
        """Return the text of what is no call after all."""
        if self._object.is_started:
            events.append(CallBroken(self._calls - 1))
        events.append(TextPart("".join((*self._raw, *self._object.parts, rest))))
        self._raw.clear()
        self._object = _Object()
        self._step = self._find_call

    def _take_raw(self, size: int) -> None:
        self._raw.append(self._buffer[:size])
        self._buffer = self._buffer[size:]


def _call_in(text: str, arguments_key: str) -> tuple[str, str] | None:
    """Return name and arguments of a call as a JSON object, in any order of its members. None if it is none."""
    try:
        members = orjson.loads(text)
        arguments = members.get(arguments_key)
        if isinstance(arguments, str):  # some models write the arguments as a string
            return _named(members, arguments) if isinstance(orjson.loads(arguments), dict) else None
    except ValueError:
        return None
    if arguments is None:
        return _named(members, "{}")
    return _named(members, orjson.dumps(arguments).decode()) if isinstance(arguments, dict) else None


def _named(members: dict[str, Any], arguments: str) -> tuple[str, str] | None:
    name = members.get("name")
    return (name, arguments) if isinstance(name, str) else None
