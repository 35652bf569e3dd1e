"""The text of single tokens, for readers of log probabilities."""

from collections.abc import Callable
from typing import NamedTuple


class TokenText(NamedTuple):
    r"""One token as text. Bytes that are not whole characters are written as `\xNN`."""

    text: str
    encoded: bytes | None  # what the token adds to an answer; None for a special token


DescribeToken = Callable[[int], TokenText]


def no_text(_: int) -> TokenText:
    """Describe a token of an unknown vocabulary."""
    return TokenText("", None)
