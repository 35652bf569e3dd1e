"""Search for stop strings in a text that arrives in deltas."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """One prefix of a stop string."""

    depth: int  # characters of the prefix
    stop: str | None = None  # the longest stop string that ends here
    next: dict[str, "_Node"] = field(default_factory=dict)
    fallback: "_Node | None" = None  # longest proper suffix that is also a prefix; None at the root


class StopStrings:
    """Finds the stop string that is completed first; of several completed at the same character, the longest.

    Holds back exactly the longest end of the text that may still become a stop string. That end is shorter than the
    longest stop string. A character costs amortized O(1), independent of the number of stop strings.
    Source: Aho and Corasick 1975, Efficient string matching.
    """

    __slots__ = ("_held", "_root", "_state", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._root = _automaton(stops)
        self._state = self._root
        self._held = ""
        self.matched: str | None = None

    def feed(self, delta: str) -> tuple[str, str | None]:
        """Return the text that is safe to show, and the stop string that `delta` completed, if any."""
        if self.matched is not None:
            return "", self.matched
        if not self._root.next:
            return delta, None
        text = self._held + delta
        for end, char in enumerate(delta, start=len(self._held) + 1):
            self._state = _step(self._state, char)
            if self._state.stop is not None:
                self.matched, self._held = self._state.stop, ""
                return text[: end - len(self.matched)], self.matched
        safe = len(text) - self._state.depth
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        held, self._held, self._state = self._held, "", self._root
        return held


def _step(node: _Node, char: str) -> _Node:
    while char not in node.next:
        if node.fallback is None:
            return node
        node = node.fallback
    return node.next[char]


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.next.setdefault(char, _Node(depth=node.depth + 1))
        node.stop = stop
    waiting = deque([root])
    while waiting:  # breadth first: a fallback is shorter than its node, so it is complete before it is read
        node = waiting.popleft()
        for char, child in node.next.items():
            child.fallback = root if node.fallback is None else _step(node.fallback, char)
            child.stop = child.stop or child.fallback.stop
            waiting.append(child)
    return root
