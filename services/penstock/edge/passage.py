"""One flight with all that surrounds it in this process."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from penstock.edge.flight.effects import Effect
from penstock.edge.flight.flight import Flight
from penstock.edge.outlets.outlet import Outlet
from penstock.edge.record import Record
from penstock.edge.refusals import Ask
from penstock.edge.request.spec import RequestSpec
from penstock.mesh.v1.admission_pb2 import Credential


class RunOnWorker(Protocol):
    """A run as the edge names it towards its worker."""

    def cancel(self) -> None: ...

    def forget(self) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Passage:
    flight: Flight
    request_id: str  # the client's name for it
    spec: RequestSpec = field(repr=False)  # a prompt
    credential: Credential = field(repr=False)  # a secret
    outlet: Outlet = field(repr=False)
    record: Record = field(repr=False)
    size: int  # bytes of prompt and ids
    asked_for: Ask | None = None  # what it asked the queue for before it was let in
    shard: str = ""  # that has the ticket; empty: none
    crash_fingerprint: int = 0  # as its ticket has it, once there is one
    run: RunOnWorker | None = None
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    timer_at: float = 0.0

    @property
    def ticket_id(self) -> str:
        return self.flight.ticket_id

    @property
    def answer_id(self) -> str:
        """What clients call the answer to resume it, at whatever edge."""
        return self.spec.answer_id or self.flight.ticket_id


class Control(Protocol):
    """What links know of whoever performs effects."""

    def now(self) -> float: ...

    def apply(self, passage: Passage, effects: list[Effect]) -> None: ...

    def link_up(self) -> None: ...
