"""Reports of placed prompts, by which each shard knows what the prompts of other shards will delay at the workers."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from penstock.chassis.durations import NANOS_PER_S
from penstock.mesh.limits.bounds import COUNT, PLACED, at_most
from penstock.mesh.v1.queue_pb2 import PlacedPrompts
from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.effects import SendPlacedPrompts

MILLIS_PER_S = 1_000
MIN_INTERVAL_S = 0.01  # s between two reports; without it, the frames of a busy fleet would cost more than placement


class PlacedPrompt(NamedTuple):
    """A prompt that was placed since the last report."""

    queue: str
    worker_id: str
    tokens: int  # to prefill
    rank: int
    due_at: float  # s; 0: no first token was promised
    usable_share: float  # of the time until then


@dataclass(slots=True)
class PlacedPromptReports:
    """The prompts placed since the last report, by model."""

    _placed: dict[str, deque[PlacedPrompt]] = field(default_factory=dict)
    _sent_at: float = -inf  # s

    def record(self, queue: str, worker_id: str, new_tokens: int, ticket: Ticket, now: float) -> None:
        due_at = now + ticket.first_token_nanos / NANOS_PER_S if ticket.first_token_nanos else 0.0
        placed = self._placed.get(ticket.model)
        if placed is None:
            placed = self._placed[ticket.model] = deque(maxlen=PLACED)
        placed.append(
            PlacedPrompt(
                queue, worker_id, new_tokens, 2 * ticket.priority - ticket.express, due_at, ticket.usable_share
            )
        )

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


def _message(model: str, placed: Iterable[PlacedPrompt], now: float) -> PlacedPrompts:
    queues, workers = dict[str, int](), dict[str, int]()
    message = PlacedPrompts(
        model=model,
        queues=[queues.setdefault(each.queue, len(queues)) for each in placed],
        workers=[workers.setdefault(each.worker_id, len(workers)) for each in placed],
        tokens=[each.tokens for each in placed],
        ranks=[each.rank for each in placed],
        first_token_millis=[_millis_left(each.due_at, now) for each in placed],
        usable_shares=[each.usable_share for each in placed],
    )
    message.queue_ids.extend(queues)
    message.worker_ids.extend(workers)
    return message


def _millis_left(due_at: float, now: float) -> int:
    return at_most(max(1, round((due_at - now) * MILLIS_PER_S)), COUNT) if due_at else 0
