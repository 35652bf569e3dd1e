"""Which worker a ticket goes to. Policies are plain classes; ties go to the lower worker id, so that runs repeat."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.fleet.worker import Worker

TYPICAL_PROMPT_TOKENS = 512  # tokens of a prompt, to rank workers by before there is a ticket
FULL_BATCH_PENALTY_STEPS = 10.0  # steps that a ticket would rather wait than share with a full batch
UNEXPECTED_WORKER_PENALTY_STEPS = (
    2.0  # steps that a ticket waits rather than go to another worker than the queue expects
)
CROSS_ZONE_COST_S = 0.002  # s; what a way to another zone and back costs, about a tenth of a step

CachedTokensFn = Callable[[Worker], int]  # tokens at the beginning of a ticket's prompt that a worker has in its cache


class Placement(Protocol):
    """Chooses among workers that can all take the ticket."""

    def load(self, worker: Worker) -> float:
        """Rank workers before there is a ticket: those with the lowest are the candidates."""

    def choose(self, workers: Sequence[Worker], ticket: Ticket, cached: CachedTokensFn) -> Worker: ...


class LowestTtft:
    """The worker that gives the first token soonest, and among those about as soon the emptiest. In s:

        (prefill in front + own prompt - what of it is cached there) / prefill rate + step time * (1 + 10 * used share)

    Time to first token is what a client feels, and prefill is what delays it. The used share, of slots or of promised
    KV blocks, whichever is scarcer, stands for what follows: decodes share their steps, and a full pool has no room
    for what comes next. Rates are each worker's own, so that unequal ones get unequal shares. A worker of
    another zone than the ticket's edge has 2 ms more: among equals the near one is taken, and none is crowded for it.
    """

    def load(self, worker: Worker) -> float:
        return _expected_ttft(worker, TYPICAL_PROMPT_TOKENS)

    def choose(self, workers: Sequence[Worker], ticket: Ticket, cached: CachedTokensFn) -> Worker:
        prompt_tokens, zone, expected = ticket.prompt_tokens, ticket.zone, ticket.expected_worker

        def load(worker: Worker) -> tuple[float, str]:
            crossing = CROSS_ZONE_COST_S if zone and worker.zone and worker.zone != zone else 0.0
            is_unexpected = expected and worker.worker_id != expected
            penalty = UNEXPECTED_WORKER_PENALTY_STEPS * worker.step_s if is_unexpected else 0.0
            return _expected_ttft(worker, prompt_tokens - cached(worker)) + crossing + penalty, worker.worker_id

        return min(workers, key=load)


def _expected_ttft(worker: Worker, tokens: int) -> float:
    prefill = (worker.prefill_backlog_tokens + tokens) / worker.prefill_tokens_per_s
    return prefill + worker.step_s * (1 + FULL_BATCH_PENALTY_STEPS * worker.used_share)
