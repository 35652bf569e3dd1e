"""One flight with all that surrounds it in this process."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from penstock.edge.admission.rejection_cache import RequestDemand
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.effects import Effect
from penstock.edge.lifecycle.sinks import ResponseSink
from penstock.edge.lifecycle.telemetry import RequestTelemetry
from penstock.edge.request.spec import RequestSpec
from penstock.mesh.v1.admission_pb2 import Credential


class RunHandle(Protocol):
    """A run as the edge names it towards its worker."""

    def cancel(self) -> None: ...

    def discard(self) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class RequestContext:
    request: ActiveRequest
    request_id: str  # the client's name for it
    spec: RequestSpec = field(repr=False)  # a prompt
    credential: Credential = field(repr=False)  # a secret
    sink: ResponseSink = field(repr=False)
    telemetry: RequestTelemetry = field(repr=False)
    size_bytes: int  # bytes of prompt and ids
    probed_demand: RequestDemand | None = None  # what it asked the queue for before it was let in
    shard: str = ""  # that has the ticket; empty: none
    poison_fingerprint: int = 0  # as its ticket has it, once there is one
    run: RunHandle | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    timer_due_at: float = 0.0

    @property
    def ticket_id(self) -> str:
        return self.request.ticket_id

    @property
    def answer_id(self) -> str:
        """What clients call the answer to resume it, at whatever edge."""
        return self.spec.answer_id or self.request.ticket_id


class EffectRunner(Protocol):
    """What links know of whoever performs effects."""

    def now(self) -> float: ...

    def apply(self, context: RequestContext, effects: list[Effect]) -> None: ...

    def on_upstream_connected(self) -> None: ...
