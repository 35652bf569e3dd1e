"""The kinds of ranges that a field can have. `admits` judges one value; `compiler.py` makes the same test fast."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Every value of the field's type is harmless, for a reason. Costs nothing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer from 0, or of an enum of which each value up to the maximum is defined."""

    maximum: int

    def admits(self, value: int) -> bool:
        return 0 <= value <= self.maximum

    def __str__(self) -> str:
        return f"0 to {self.maximum}"


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number. NaN is outside every range."""

    maximum: float
    minimum: float = 0.0

    def __post_init__(self) -> None:
        assert -inf < self.minimum <= self.maximum < inf, "the bounds are finite"

    def admits(self, value: float) -> bool:
        return self.minimum <= value <= self.maximum

    def __str__(self) -> str:
        return f"{self.minimum:g} to {self.maximum:g}"


@dataclass(frozen=True, slots=True)
class Text:
    """A text of at most `max_chars` characters, all of which `allowed` matches, if it is given."""

    max_chars: int
    allowed: str = ""  # regular expression of the whole text

    def admits(self, value: str) -> bool:
        return len(value) <= self.max_chars and (not self.allowed or re.fullmatch(self.allowed, value) is not None)

    def __str__(self) -> str:
        return f"at most {self.max_chars} characters" + (f" that match {self.allowed}" if self.allowed else "")


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes, at most `max_bytes` of them."""

    max_bytes: int

    def admits(self, value: bytes) -> bool:
        return len(value) <= self.max_bytes

    def __str__(self) -> str:
        return f"at most {self.max_bytes} bytes"


@dataclass(frozen=True, slots=True)
class Part:
    """A message with ranges of its own in the table."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A repeated message. The receiver judges each entry by itself, so that a wrong one costs its request alone."""

    max_count: int
    reason: str

    def admits(self, value: Any) -> bool:
        return len(value) <= self.max_count

    def __str__(self) -> str:
        return f"at most {self.max_count} entries"


@dataclass(frozen=True, slots=True)
class Many:
    """A repeated field of at most `max_count` entries, each within `each`."""

    max_count: int
    each: "Unchecked | Whole | Real | Text | Part"

    def admits(self, value: Any) -> bool:
        return len(value) <= self.max_count

    def __str__(self) -> str:
        return f"at most {self.max_count} entries"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map of texts to texts."""

    max_count: int
    max_chars: int  # of each key and each value

    def admits(self, value: Mapping[str, str]) -> bool:
        return len(value) <= self.max_count and all(
            len(key) <= self.max_chars and len(each) <= self.max_chars for key, each in value.items()
        )

    def __str__(self) -> str:
        return f"at most {self.max_count} pairs of at most {self.max_chars} characters each"


Rule = Unchecked | Whole | Real | Text | Data | Part | Apart | Many | Pairs
MessageRules = Mapping[str, Rule]  # by field
Table = Mapping[str, MessageRules]  # by full name of the message
