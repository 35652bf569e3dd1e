"""Request context: an active request with the objects that belong to it in this process."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.effects import Effect, Emit, Settle
from penstock.edge.lifecycle.observability.telemetry import RequestTelemetry
from penstock.edge.lifecycle.sinks import ResponseSink
from penstock.edge.request.limit_headers import Headers
from penstock.edge.request.spec import RequestSpec
from penstock.edge.text.token_text import TokenText
from penstock.mesh.v1.admission_pb2 import Credential

# Takes the settlement of a request, and a function that sends it, or what it is replaced by, to auth.
SettlementHold = Callable[[Settle, Callable[[Settle], None]], None]


class RunHandle(Protocol):
    """Handle of a run on a worker's stream."""

    def cancel(self) -> None: ...

    def discard(self) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class RequestContext:
    request: ActiveRequest
    request_id: str  # chosen by the client, or the ticket id
    spec: RequestSpec = field(repr=False)  # a prompt
    credential: Credential = field(repr=False)  # a secret
    sink: ResponseSink = field(repr=False)
    telemetry: RequestTelemetry = field(repr=False)
    size_bytes: int  # of the prompt and its token ids
    route: str = ""  # by which the caller named the model; empty: by its own name
    limit_headers: Headers = ()  # of its admission or rejection by auth; empty if its caller has no such limits
    shard: str = ""  # address of the shard that holds the ticket; empty if none does
    away_nanos: int = 0  # of its TTFT target, that a guest spends outside of this region; 0: not a guest
    poison_fingerprint: int = 0  # of its ticket; 0 until it is computed
    hold_settlement: SettlementHold | None = None  # receives the settlement in place of auth
    on_settled: Callable[[], None] | None = None  # called once auth has recorded the settlement, or never will
    run: RunHandle | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    timer_due_at: float = math.inf  # of the runner's clock; inf without a timer

    @property
    def ticket_id(self) -> str:
        return self.request.ticket_id

    @property
    def answer_id(self) -> str:
        """Id by which a client resumes the answer at any edge."""
        return self.spec.answer_id or self.request.ticket_id

    def describe_token(self, token_id: int) -> TokenText:
        """Return the text of a token of the model that answers. The request is planned."""
        return self.request.plan.describe_token(token_id)


class EffectRunner(Protocol):
    """The interface of the request runner for upstream clients."""

    def now(self) -> float: ...

    def apply(self, context: RequestContext, effects: list[Effect]) -> None: ...

    def emit(self, context: RequestContext, delta: Emit) -> None: ...

    def on_upstream_connected(self) -> None: ...
