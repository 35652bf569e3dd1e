"""The record of one request that has ended, as bytes: ten thousand of them cost the garbage collector nothing."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.request.front_times import FrontTimes
from penstock.mesh.class_names import class_name
from penstock.mesh.v1.admission_pb2 import Identity
from penstock.mesh.v1.queue_pb2 import Queued

NANOS_PER_S = 1_000_000_000
EDGE_TIER = "edge"
# The stage in which a request ended, by the last one that had ended; any other is followed by a wait in the queue.
NEXT_STAGES: dict[tuple[str, str], tuple[str, str]] = {
    ("", ""): ("edge", "tokenize"),
    ("edge", "hold"): ("edge", "tokenize"),
    ("edge", "tokenize"): ("auth", "admission"),
    ("edge", "finish"): ("edge", "finish"),
}


class Part(NamedTuple):
    """One part of the time of a request."""

    tier: str
    name: str
    nanos: int


class LostRunFacts(NamedTuple):
    """A run that was lost."""

    worker_id: str
    nanos: int  # from the lease until the edge learned of the loss
    output_tokens: int


class QueueFacts(NamedTuple):
    """What the queue told when it admitted the ticket."""

    tickets_ahead: int = 0
    predicted_wait: float | None = None  # s; None: not predicted
    busiest_tenant_id: str = ""  # of the class; empty: not told
    busiest_tickets: int = 0
    class_running: int = 0
    running: int = 0
    slots: int = 0  # 0: not known


class RequestFacts(NamedTuple):
    """What an edge remembers of a request. Times are Unix seconds. A record has the same fields in the same order."""

    request_id: str
    ticket_id: str
    trace_id: str
    answer_id: str
    tenant_id: str
    key_id: str
    priority: str
    model: str
    outcome: str
    reason: str
    rejected_by: str
    began_at: float  # at the proxy, or at the edge if the proxy's time is not known
    has_proxy_time: bool
    first_token_at: float | None
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    attempts: int  # runs on workers; 0: none
    worker_id: str
    parts: Sequence[Part]
    lost_runs: Sequence[LostRunFacts]
    queue: QueueFacts

    @property
    def total(self) -> float:
        """Seconds from `began_at` to the end of the answer."""
        return sum(part.nanos for part in self.parts) / NANOS_PER_S


class Record(NamedTuple):
    """The packed facts of a request, and the ids by which it is found."""

    ids: tuple[str, ...]
    packed: bytes


def _packed(facts: tuple[object, ...]) -> bytes:
    return bytes(memoryview(orjson.dumps(facts)))  # a copy: the result of orjson keeps its buffer of 8 KiB


def unpacked(packed: bytes) -> RequestFacts:
    *plain, parts, lost_runs, queue = orjson.loads(packed)
    lost = [LostRunFacts(*each) for each in lost_runs]
    return RequestFacts._make([*plain, [Part(*each) for each in parts], lost, QueueFacts(*queue)])


def record_of(
    request: ActiveRequest,
    *,
    request_id: str,
    answer_id: str,
    trace_id: str,
    requested_model: str,
    front: FrontTimes,
    queued: Queued | None,
    error: PenstockError | None,
    rejected_by: str,
    answered_at: float,
) -> Record:
    """Record a request whose answer ended at `answered_at`."""
    began_at, before = front.parts(request.arrived_at)
    identity = request.identity
    facts = (
        request_id,
        request.ticket_id,
        trace_id,
        answer_id,
        identity.tenant_id,
        identity.key_id,
        class_name(identity.priority) if identity.tenant_id else "",
        request.model or requested_model,
        request.outcome,
        error.reason if error else "",
        rejected_by,
        began_at,
        0 < front.proxied_at == began_at,
        None if math.isnan(request.first_token_at) else request.first_token_at,
        request.prompt_tokens,
        request.cached_prompt_tokens,
        request.output_tokens,
        request.attempt if request.worker_id else 0,
        request.worker_id,
        [*before, *_parts(request, round(answered_at * NANOS_PER_S))],
        [
            (run.worker_id, round((run.lost_at - run.leased_at) * NANOS_PER_S), run.output_tokens)
            for run in request.lost_runs
        ],
        _queue_facts(queued),
    )
    return Record((request_id, request.ticket_id, trace_id, answer_id), _packed(facts))


def refusal_record_of(
    *,
    request_id: str,
    trace_id: str,
    caller: Identity,
    model: str,
    error: PenstockError,
    now: float,
) -> Record:
    """Record a request that this edge refused before it was active. It took no time that is measured."""
    class_ = class_name(caller.priority) if caller.tenant_id else ""
    whose = caller.tenant_id, caller.key_id, class_, model
    sizes = 0, 0, 0, 0
    ending = "shed", error.reason, EDGE_TIER
    facts = (request_id, "", trace_id, "", *whose, *ending, now, False, None, *sizes, "", (), (), ())
    return Record((request_id, trace_id), _packed(facts))


def _parts(request: ActiveRequest, last: int) -> list[tuple[str, str, int]]:
    """Return the stages of the timeline until `last` in Unix ns, with the one that was open then."""
    parts, reached, latest = list[tuple[str, str, int]](), round(request.arrived_at * NANOS_PER_S), ("", "")
    for tier, name, began, finished in request.timeline.intervals():
        if began < last:
            parts.append((tier, name, min(finished, last) - began))
        reached, latest = finished, (tier, name)
    if reached < last:
        is_held = request.is_held and latest == ("", "")
        tier, name = ("edge", "hold") if is_held else NEXT_STAGES.get(latest, ("queue", "wait"))
        before = parts.pop()[-1] if latest == (tier, name) else 0
        parts.append((tier, name, before + last - reached))
    return parts


def _queue_facts(queued: Queued | None) -> tuple[object, ...]:
    """Return the values of `QueueFacts`; fewer are completed by its defaults."""
    if queued is None:
        return ()
    wait = queued.predicted_wait
    predicted = wait.seconds + wait.nanos / NANOS_PER_S if queued.HasField("predicted_wait") else None
    if not queued.HasField("census"):
        return queued.ahead_hint, predicted
    census = queued.census
    counts = census.busiest_tickets, census.class_running, census.running, census.slots
    return queued.ahead_hint, predicted, census.busiest_tenant_id, *counts
