"""Search for the end of a JSON object in a text that arrives in pieces."""

import re
from enum import Enum, auto

_OUTSIDE = re.compile(r"[^\s,:.+\-0-9A-Za-z]")  # brackets, quotes, and characters that JSON has in strings only
_INSIDE = re.compile(r'["\\]')


class Scan(Enum):
    INCOMPLETE = auto()  # the text ends before the value
    CLOSED = auto()  # the bracket of the requested depth is closed
    INVALID = auto()  # before a character that JSON has in strings only


class JsonScanner:
    """Follows the brackets and strings of one JSON object. It does not check the order of its tokens."""

    __slots__ = ("_depth", "_is_escaped", "_is_in_string", "position")

    def __init__(self, depth: int = 0) -> None:
        self.position = 0  # in the text that was scanned last
        self._depth = depth  # of open brackets
        self._is_in_string = False
        self._is_escaped = False

    def scan(self, text: str, depth: int) -> Scan:
        """Scan a piece of text until a bracket closes to `depth`. `position` is then the index behind it."""
        at = 0
        while at < len(text):
            if self._is_in_string:
                at = self._scan_string(text, at)
                continue
            found = _OUTSIDE.search(text, at)
            if found is None:
                break
            at = found.end()
            if found[0] == '"':
                self._is_in_string = True
            elif found[0] in "{[":
                self._depth += 1
            elif found[0] in "}]":
                self._depth -= 1
                if self._depth == depth:
                    self.position = at
                    return Scan.CLOSED
            else:
                self.position = found.start()
                return Scan.INVALID
        self.position = len(text)
        return Scan.INCOMPLETE

    def _scan_string(self, text: str, begin: int) -> int:
        """Scan the rest of a string. Returns the index behind it, or the end of the text."""
        at = begin + self._is_escaped
        self._is_escaped = False
        while found := _INSIDE.search(text, at):
            if found[0] == '"':
                self._is_in_string = False
                return found.end()
            at = found.end() + 1  # behind the escaped character
            if at > len(text):
                self._is_escaped = True
                break
        return len(text)
