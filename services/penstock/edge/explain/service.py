"""Admin service of an edge: what happened to recent requests, in addition to the RPCs of every tier."""

from collections.abc import Mapping
from typing import Any

from penstock.chassis.errors import InvalidArgument, NotFound
from penstock.chassis.server.admin import AdminService, Figures, Tables
from penstock.edge.explain.cause import cause_of
from penstock.edge.explain.history import RequestHistory
from penstock.edge.explain.record import NANOS_PER_S, RequestFacts, unpacked
from penstock.v1 import admin_pb2 as pb
from penstock.v1.inference_pb2 import Stage

MAX_ID_CHARS = 256
MAX_LISTED = 50  # requests of each kind in the table of the snapshot
NO_PROXY = "proxy and the network before it: the proxy told no time"
TO_CLIENT = "the network from this edge to the client"


class EdgeAdmin(AdminService):
    """Explains the requests of one edge."""

    def __init__(self, instance_id: str, history: RequestHistory, figures: Figures, tables: Tables) -> None:
        super().__init__(
            "edge",
            instance_id,
            lambda: {**figures(), **history.figures},
            lambda: {**tables(), "requests": _rows(history)},
        )
        self._history = history

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        if not 0 < len(request.id) <= MAX_ID_CHARS:
            raise InvalidArgument(f"id must have 1 to {MAX_ID_CHARS} characters", field="id")
        packed = self._history.find(request.id)
        if packed is None:
            text = (
                f"edge {self.instance_id} does not remember a request {request.id!r}; ask the other edges, or its trace"
            )
            raise NotFound(text, reason="REQUEST_UNKNOWN")
        return pb.ExplainResponse(request=explained(unpacked(packed)), edge_id=self.instance_id)


def explained(facts: RequestFacts) -> pb.ExplainedRequest:
    """Return facts as a message, with their cause."""
    message = pb.ExplainedRequest(
        request_id=facts.request_id,
        ticket_id=facts.ticket_id,
        trace_id=facts.trace_id,
        answer_id=facts.answer_id,
        tenant_id=facts.tenant_id,
        key_id=facts.key_id,
        priority=facts.priority,
        model=facts.model,
        outcome=facts.outcome,
        reason=facts.reason,
        rejected_by=facts.rejected_by,
        not_measured=[TO_CLIENT] if facts.has_proxy_time else [NO_PROXY, TO_CLIENT],
        cause=cause_of(facts),
        prompt_tokens=facts.prompt_tokens,
        cached_prompt_tokens=facts.cached_prompt_tokens,
        output_tokens=facts.output_tokens,
        attempts=facts.attempts,
        worker_id=facts.worker_id,
    )
    message.start_time.FromNanoseconds(round(facts.began_at * NANOS_PER_S))
    start = 0
    for part in facts.parts:
        stage = Stage(tier=part.tier, name=part.name)
        stage.start.FromNanoseconds(start)
        stage.length.FromNanoseconds(part.nanos)
        message.stages.append(stage)
        start += part.nanos
    message.total.FromNanoseconds(start)
    if facts.first_token_at is not None:
        message.first_token.FromNanoseconds(max(0, round((facts.first_token_at - facts.began_at) * NANOS_PER_S)))
    return message


def _rows(history: RequestHistory) -> list[Mapping[str, Any]]:
    """Return recent requests for the table of the snapshot, the newest first."""
    found = {each.ticket_id or each.request_id: each for each in map(unpacked, history.latest(MAX_LISTED))}
    newest = sorted(found.values(), key=lambda each: each.began_at + each.total, reverse=True)[:MAX_LISTED]
    return [_row(each) for each in newest]


def _row(facts: RequestFacts) -> dict[str, Any]:
    start, stages = 0, []
    for part in facts.parts:
        stages.append(
            {"tier": part.tier, "name": part.name, "start_s": start / NANOS_PER_S, "length_s": part.nanos / NANOS_PER_S}
        )
        start += part.nanos
    return {
        "request_id": facts.request_id,
        "model": facts.model,
        "tenant_id": facts.tenant_id,
        "outcome": facts.outcome,
        "end_time": facts.began_at + facts.total,
        "total_s": facts.total,
        "stages": stages,
        "cause": cause_of(facts),
    }
