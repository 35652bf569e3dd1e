"""The fewest tokens that a prompt can come to, told without its tokenizer."""

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from penstock.edge.request.spec import ChatInput, Prompt, TextInput

MAX_SCANNED_CHARS = 16 * 2**10  # characters of each text, so that it takes microseconds
MAX_SCANNED_TURNS = 64
OMITTED_ROLE = "assistant"  # templates may leave out what this role said, or parts of it


class ChatTurn(Protocol):
    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


def min_tokens(prompt: Prompt) -> int:
    match prompt:
        case TextInput(text):
            return min_tokens_of_text(text)
        case ChatInput(messages):
            return min_tokens_of_turns(messages)
        case _:
            return len(prompt.ids)


def min_tokens_of_text(text: str) -> int:
    """Return a lower bound: as tokens are trained on words, none spans two of them."""
    return len(text[:MAX_SCANNED_CHARS].split())


def min_tokens_of_turns(turns: Iterable[ChatTurn]) -> int:
    """Look at the first turns alone: they are not counted yet, and there may be millions."""
    return sum(
        min_tokens_of_text(each.content) for each in islice(turns, MAX_SCANNED_TURNS) if each.role != OMITTED_ROLE
    )
