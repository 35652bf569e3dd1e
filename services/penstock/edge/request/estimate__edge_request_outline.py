"""What a request asks for at least, told before it is read in full: in microseconds, however long it is."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.edge.admission.rejection_cache import RequestDemand, TrafficClass
from penstock.edge.request.estimate__edge_text_least import min_tokens
from penstock.edge.request.spec import RequestSpec
from penstock.v1.inference_pb2 import Priority


class RequestEstimate(NamedTuple):
    """Not checked against any limit yet."""

    request_id: str
    model: str
    priority: "Priority.ValueType"
    min_prompt_tokens: Callable[[], int]  # tokens; worked out only where somebody may be refused
    max_output_tokens: int | None
    timeout_s: float | None
    is_new: bool  # whether no edge has let it in before


class AdmissionProbe(NamedTuple):
    """What the queue is asked first of a request whose like it refuses at the moment."""

    traffic_class: TrafficClass
    demand: RequestDemand  # the least that it can come to
    weight: float  # of its tenant
    key_id: str
    estimate: RequestEstimate
    traceparent: str


class AdmissionResult(NamedTuple):
    """When a request came that was not refused at the door, and how long it may take."""

    arrived_at: float  # s of the unix clock
    time_limit: float  # s
    probe: AdmissionProbe | None = None  # None: it goes on without asking


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
