"""What a request asks for at least, told before it is read in full: in microseconds, however long it is."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from penstock.edge.request.spec import ChatInput, Prompt, RequestSpec, TextInput
from penstock.v1.inference_pb2 import Priority

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


class RequestEstimate(NamedTuple):
    """Not checked against any limit yet."""

    request_id: str
    model: str
    priority: "Priority.ValueType"
    min_prompt_tokens: Callable[[], int]  # tokens; worked out only where somebody may be refused
    max_output_tokens: int | None
    timeout_s: float | None
    is_new: bool  # whether no edge has let it in before


class AdmissionResult(NamedTuple):
    """When a request came that was not refused at the door, and how long it may take."""

    arrived_at: float  # s of the unix clock
    time_limit: float  # s


def estimate_from_spec(spec: RequestSpec) -> RequestEstimate:
    return RequestEstimate(
        spec.request_id,
        spec.model,
        spec.priority,
        lambda: min_tokens(spec.input),
        spec.max_output_tokens,
        spec.timeout_s,
        is_new=not (spec.resume_ids or spec.answer_id),
    )
