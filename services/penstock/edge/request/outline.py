"""What a request asks for at least, told before it is read in full: in microseconds, however long it is."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.edge.refusals import Ask, Kind
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.least import least_tokens
from penstock.v1.inference_pb2 import Priority


class Outline(NamedTuple):
    """Not checked against any limit yet."""

    request_id: str
    model: str
    priority: "Priority.ValueType"
    least_prompt: Callable[[], int]  # tokens; worked out only where somebody may be refused
    max_output_tokens: int | None
    timeout_s: float | None
    is_fresh: bool  # whether no edge has let it in before


class Knock(NamedTuple):
    """What the queue is asked first of a request whose like it refuses at the moment."""

    kind: Kind
    ask: Ask  # the least that it can come to
    weight: float  # of its tenant
    key_id: str
    asked: Outline
    traceparent: str


class Arrival(NamedTuple):
    """When a request came that was not refused at the door, and how long it may take."""

    at: float  # s of the unix clock
    time: float  # s
    knock: Knock | None = None  # None: it goes on without asking


def outline_of(spec: RequestSpec) -> Outline:
    return Outline(
        spec.request_id,
        spec.model,
        spec.priority,
        lambda: least_tokens(spec.input),
        spec.max_output_tokens,
        spec.timeout_s,
        is_fresh=not (spec.resume_ids or spec.answer_id),
    )
