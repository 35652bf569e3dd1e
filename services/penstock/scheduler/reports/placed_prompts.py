"""Reports of placed prompts, by which each shard knows what the prompts of other shards will delay at the workers."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from penstock.chassis.durations import NANOS_PER_S, nanos_left
from penstock.mesh.limits.bounds import PLACED, TOKENS, at_most
from penstock.mesh.v1.queue_pb2 import PlacedPrompt, PlacedPrompts
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.effects import SendPlacedPrompts

# s between two reports. Without it, the frames of a busy fleet would cost more than the placements.
MIN_INTERVAL_S = 0.01


@dataclass(slots=True)
class PlacedPromptReports:
    """The prompts that were placed since the last report."""

    # By model: prompts, and the time in s at which the first token of each is due; inf: none was promised.
    _placed: dict[str, deque[tuple[PlacedPrompt, float]]] = field(default_factory=dict)
    _sent_at: float = -inf  # s

    def record(self, queue: str, worker_id: str, new_tokens: int, ticket: Ticket, now: float) -> None:
        """Record a placement. `new_tokens`: prompt tokens that are not cached at the worker."""
        prompt = PlacedPrompt(
            queue_id=queue,
            worker_id=worker_id,
            prompt_tokens=at_most(new_tokens, TOKENS),
            priority=ticket.priority,
            express=ticket.express,
            usable_share=ticket.usable_share,
        )
        placed = self._placed.get(ticket.model)
        if placed is None:
            placed = self._placed[ticket.model] = deque(maxlen=PLACED)
        promise = ticket.first_token_nanos
        placed.append((prompt, now + promise / NANOS_PER_S if promise else inf))

    def pop_due(self, queues: Iterable[str], now: float) -> list[SendPlacedPrompts]:
        """Return the report for every shard, if the last one is old enough. All receive the same one: it is made once.

        It is sent at once after a pause: until then, other shards expect their next prompts at the same worker.
        """
        if not self._placed or now - self._sent_at < MIN_INTERVAL_S:
            return []
        self._sent_at = now
        messages = [_message(model, placed, now) for model, placed in self._placed.items()]
        self._placed = {}
        return [SendPlacedPrompts(queue, message) for queue in queues for message in messages]


def _message(model: str, placed: Iterable[tuple[PlacedPrompt, float]], now: float) -> PlacedPrompts:
    for prompt, due_at in placed:
        prompt.first_token_nanos = nanos_left(due_at, now)
    return PlacedPrompts(model=model, prompts=[prompt for prompt, _ in placed])
