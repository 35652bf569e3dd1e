"""Request estimate: a lower bound of a request's demand, computed in microseconds before the request is parsed."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple, Protocol

from penstock.edge.request.front_times import NO_TIMES, FrontTimes
from penstock.edge.request.spec import ChatInput, Prompt, RequestSpec, TextInput
from penstock.v1.inference_pb2 import Priority

MAX_SCANNED_CHARS = 16 * 2**10  # of each text, so that the scan takes microseconds
MAX_SCANNED_TURNS = 64
OMITTED_ROLE = "assistant"  # chat templates may omit messages of this role, or parts of them


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
    """Return a lower bound. Tokenizers are trained on words, so no token spans two words."""
    return len(text[:MAX_SCANNED_CHARS].split())


def min_tokens_of_turns(turns: Iterable[ChatTurn]) -> int:
    """Return a lower bound from the first turns only, because the number of turns is not limited yet."""
    return sum(
        min_tokens_of_text(each.content) for each in islice(turns, MAX_SCANNED_TURNS) if each.role != OMITTED_ROLE
    )


class RequestEstimate(NamedTuple):
    """Lower bound of a request that is not validated yet."""

    request_id: str
    model: str
    priority: "Priority.ValueType"
    min_prompt_tokens: Callable[[], int]  # computed only if the request may be rejected
    max_output_tokens: int | None
    timeout_s: float | None
    is_new: bool  # whether it resumes no earlier answer
    model_version: str = ""  # of the model that began the answer that it resumes; empty: unknown


class AdmissionResult(NamedTuple):
    """Arrival and time limit of a request that the admission filter did not reject."""

    arrived_at: float  # s of the unix clock
    time_limit: float  # s
    model: str = ""  # that serves the request in place of the one that it names; empty: that one
    front: FrontTimes = NO_TIMES


def estimate_from_spec(spec: RequestSpec) -> RequestEstimate:
    return RequestEstimate(
        spec.request_id,
        spec.model,
        spec.priority,
        lambda: min_tokens(spec.input),
        spec.max_output_tokens,
        spec.timeout_s,
        is_new=not spec.is_continued,
        model_version=spec.model_version if spec.resume_ids else "",
    )
