"""Table of the active requests of this edge, bounded in number and bytes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.chassis.errors import Overloaded
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.memory import MemoryBudget
from penstock.edge.lifecycle.record import RequestState

EWMA_WEIGHT = 0.1  # of the newest interval
RETRY_AFTER_RANGE_S = (0.1, 30.0)  # s
FREED_SHARE_BEFORE_RETRY = 0.05  # share of the table; a rejected client is told to retry once this much is free


class ActiveRequests:
    """All active requests by ticket id. A request for which there is no room is rejected with a time to retry."""

    def __init__(self, *, max_active_requests: int, max_held_bytes: int) -> None:
        self.max_active_requests = max_active_requests
        self.memory = MemoryBudget(max_held_bytes)
        self.started = 0
        self._contexts: dict[str, RequestContext] = {}
        self._last_completion_at = 0.0
        self._completion_interval = 1.0  # s between two ends of requests, smoothed

    def __repr__(self) -> str:
        held, most = self.memory.held_bytes, self.memory.max_bytes
        return f"<ActiveRequests {len(self)}/{self.max_active_requests}, {held}/{most} bytes>"

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[RequestContext]:
        return iter(list(self._contexts.values()))  # a copy, because the caller may remove some

    def get(self, ticket_id: str) -> RequestContext | None:
        return self._contexts.get(ticket_id)

    def in_state(self, *states: RequestState) -> list[RequestContext]:
        return [context for context in self if context.request.state in states]

    def count_by_state(self) -> Counter[RequestState]:
        return Counter(context.request.state for context in self._contexts.values())

    def check_room(self, size: int) -> None:
        """Raise Overloaded if there is no room for another request of `size` bytes."""
        if len(self) >= self.max_active_requests or not self.memory.has_room(size):
            held = self.memory.prompt_bytes
            text = f"this edge holds {len(self)} requests with prompts of {held} bytes and accepts no more now"
            raise Overloaded(text, reason="EDGE_FULL", retry_after=self._retry_after())

    def add(self, context: RequestContext) -> None:
        self._contexts[context.ticket_id] = context
        self.memory.add_prompt(context.size_bytes)
        self.started += 1

    def add_bytes(self, context: RequestContext, size: int) -> None:
        """Count `size` more bytes of a prompt. Raises Overloaded, and counts nothing, above the limit."""
        if context.ticket_id not in self._contexts:  # its client cancelled while it was tokenized
            return
        if not self.memory.has_room(size):
            self.check_room(size)
        context.size_bytes += size
        self.memory.add_prompt(size)

    @contextmanager
    def hold_bytes(self, size: int) -> Iterator[None]:
        """Count `size` bytes that belong to no active request. Raises Overloaded as `check_room` does."""
        self.check_room(size)
        self.memory.add_prompt(size)
        try:
            yield
        finally:
            self.memory.remove_prompt(size)

    def remove(self, context: RequestContext, now: float) -> None:
        if self._contexts.pop(context.ticket_id, None) is None:
            return
        self.memory.remove_prompt(context.size_bytes)
        if self._last_completion_at:
            self._completion_interval += EWMA_WEIGHT * (now - self._last_completion_at - self._completion_interval)
        self._last_completion_at = now

    def _retry_after(self) -> float:
        low, high = RETRY_AFTER_RANGE_S
        return min(high, max(low, self._completion_interval * self.max_active_requests * FREED_SHARE_BEFORE_RETRY))
