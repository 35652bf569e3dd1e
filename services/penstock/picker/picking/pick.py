"""One request that needs an endpoint, from its arrival to the end of its response."""

from dataclasses import dataclass

from penstock.chassis.errors import PenstockError
from penstock.queue.ticket import QueuedTicket
from penstock.scheduler.fleet.worker import Worker
from penstock.v1.inference_pb2 import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRequest:
    """The demand of a request. Sizes are estimates in tokens."""

    tenant: str = ""
    priority: int = Priority.PRIORITY_STANDARD
    weight: float = 1.0
    model: str = ""  # as the body names it; empty: unknown
    prompt_tokens: int = 1
    prompt_bytes: int = 0  # from which the tokens were estimated
    prefix_hashes: tuple[int, ...] = ()  # at `PREFIX_DEPTHS`
    max_output_tokens: int = 1
    time_limit: float = 0.0  # s for the first token; 0: none
    subset: frozenset[str] | None = None  # endpoints that it may go to; None: all
    needs_slot: bool = True  # False: a request without a body, which no engine computes


@dataclass(slots=True, eq=False)
class Pick:
    """A request and its endpoint. It waits while it has neither destinations nor an error."""

    request: PickRequest
    ticket: QueuedTicket
    destinations: tuple[str, ...] = ()  # the chosen endpoint first, then those for retries of the proxy
    error: PenstockError | None = None
    worker: Worker | None = None  # that has the slot; None: no slot is held
    placed_at: float = 0.0  # s
    new_tokens: int = 0  # of the prompt, that are not expected in the cache of the endpoint
    waited: float = 0.0  # s from its arrival to its decision

    @property
    def is_decided(self) -> bool:
        return bool(self.destinations) or self.error is not None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a response, as the server reports them."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # of the prompt
