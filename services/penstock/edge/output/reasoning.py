"""Division of an answer into reasoning and the rest."""

from enum import Enum, auto

from penstock.edge.output.formats import ReasoningFormat
from penstock.edge.output.markers import held_from


class _State(Enum):
    START = auto()  # only whitespace so far
    REASONING_START = auto()
    REASONING = auto()
    REST_START = auto()
    REST = auto()


class ReasoningSplitter:
    """Divides a text that arrives in pieces. Reasoning stands at the start of an answer only.

    Whitespace around the markers belongs to them and is dropped. A text without reasoning is returned as it is.
    """

    __slots__ = ("_format", "_held", "_state")

    def __init__(self, reasoning: ReasoningFormat, *, is_open: bool = False) -> None:
        """`is_open`: the prompt ends with the opening marker."""
        self._format = reasoning
        self._held = ""
        self._state = _State.REASONING_START if is_open else _State.START

    def feed(self, text: str) -> tuple[str, str]:
        """Return the next reasoning, and the next text of the rest."""
        if self._state is _State.REST:
            return "", text
        self._held += text
        if self._state is _State.START and not self._is_begun():
            return "", ""
        reasoning = self._reasoning() if self._state in (_State.REASONING_START, _State.REASONING) else ""
        if self._state is _State.REST_START:
            self._held = self._held.lstrip()
            if self._held:
                self._state = _State.REST
        if self._state is not _State.REST:
            return reasoning, ""
        return reasoning, self._take()

    def flush(self) -> tuple[str, str]:
        """Return what is held back at the end of the answer."""
        held = self._take()
        return (held, "") if self._state is _State.REASONING else ("", held)

    def _is_begun(self) -> bool:
        """Enter the next state if the start of the answer is known. Returns whether it is."""
        begun = self._held.lstrip()
        if begun.startswith(self._format.begin):
            self._held = begun.removeprefix(self._format.begin)
            self._state = _State.REASONING_START
        elif not self._format.begin.startswith(begun):
            self._state = _State.REST
        return self._state is not _State.START

    def _reasoning(self) -> str:
        if self._state is _State.REASONING_START:
            self._held = self._held.lstrip()
            if not self._held:
                return ""
            self._state = _State.REASONING
        before, found, after = self._held.partition(self._format.end)
        if found:
            self._held, self._state = after, _State.REST_START
            return before.rstrip()
        safe = held_from(self._held, self._format.end)
        reasoning, self._held = self._held[:safe], self._held[safe:]
        return reasoning

    def _take(self) -> str:
        held, self._held = self._held, ""
        return held
