"""Parts of an answer, as a parser finds them in the text of the model."""

from typing import NamedTuple


class TextPart(NamedTuple):
    text: str


class ReasoningPart(NamedTuple):
    text: str


class CallStarted(NamedTuple):
    call_index: int  # of the call in its answer, from 0
    name: str


class CallArguments(NamedTuple):
    """The next part of the arguments of the call that was started last."""

    call_index: int
    text: str  # of JSON


class CallFinished(NamedTuple):
    """A call is complete and valid."""

    call_index: int


class CallBroken(NamedTuple):
    """A started call is not valid JSON after all. All of its text follows as text."""

    call_index: int


Event = TextPart | ReasoningPart | CallStarted | CallArguments | CallFinished | CallBroken
