"""Placement: the choice of the worker for a ticket. Ties go to the lower worker id, so that runs are repeatable."""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.fleet.worker import Worker

TYPICAL_PROMPT_TOKENS = 512  # prompt tokens assumed for the rank of workers without a ticket
FULL_BATCH_PENALTY_STEPS = 10.0  # steps of delay that a full batch counts as
UNEXPECTED_WORKER_PENALTY_STEPS = 2.0  # steps of delay that a worker counts as that the queue does not expect
CACHE_BALANCE = 0.05  # share of the prefill time of a full KV pool that one turnover more than other workers counts as
CROSS_ZONE_COST_S = 0.002  # s; round trip to another zone, about a tenth of a step

CachedTokensFn = Callable[[Worker], int]  # tokens of the ticket's prefix in the cache of a worker


class Placement(Protocol):
    """Chooses one of the workers that can take a ticket."""

    def load(self, worker: Worker) -> float:
        """Return the rank of a worker without a ticket. The workers with the lowest ranks are the candidates."""

    def choose(self, workers: Sequence[Worker], ticket: Ticket, cached: CachedTokensFn) -> Worker: ...


class LowestTtft:
    """Chooses the worker with the lowest expected TTFT and, among similar ones, the lowest load. In s:

        (prefill backlog + prompt tokens - cached tokens) / prefill rate + step time * (1 + 10 * used share)
        + 0.05 * excess turnover * cache tokens / prefill rate

    Prefill dominates the TTFT. The used share, of slots or of promised KV blocks, whichever is larger, stands for the
    time after the first token: decodes share the steps of a worker, and a full pool has no capacity for later tickets.
    The last term balances the prompt tokens that workers have received, relative to their caches. Without it, new
    conversations at low load go to few workers, whose caches evict what will be asked for again, while the caches of
    other workers keep what nobody asks for. With it, the caches of all workers evict like one cache of their size.
    Rates are those of each worker, so that faster workers get more tickets. A worker in another zone than the ticket's
    edge counts 2 ms more: among similar workers the one in the same zone is chosen, but it is not overloaded for it.
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
    usage = worker.step_s * (1 + FULL_BATCH_PENALTY_STEPS * worker.used_share)
    cache = CACHE_BALANCE * worker.excess_turnover * worker.cache_tokens / worker.prefill_tokens_per_s
    return prefill + usage + cache
