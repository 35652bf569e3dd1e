"""The fewest tokens that a prompt can come to, told without its tokenizer."""

from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from penstock.edge.request.spec import ChatInput, Prompt, TextInput

LOOKED_AT = 16 * 2**10  # characters of each text, so that it takes microseconds
LOOKED_AT_TURNS = 64
DROPPED = "assistant"  # templates may leave out what this role said, or parts of it


class Turn(Protocol):
    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str: ...


def least_tokens(prompt: Prompt) -> int:
    match prompt:
        case TextInput(text):
            return least_of_text(text)
        case ChatInput(messages):
            return least_of_turns(messages)
        case _:
            return len(prompt.ids)


def least_of_text(text: str) -> int:
    """Return a lower bound: as tokens are trained on words, none spans two of them."""
    return len(text[:LOOKED_AT].split())


def least_of_turns(turns: Iterable[Turn]) -> int:
    """Look at the first turns alone: they are not counted yet, and there may be millions."""
    return sum(least_of_text(each.content) for each in islice(turns, LOOKED_AT_TURNS) if each.role != DROPPED)
