"""Placement: the choice of the worker for a ticket. Ties go to the lower worker id, so that runs are repeatable."""

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.mesh.v1.ticket_pb2 import Ticket
from penstock.scheduler.fleet.worker import Worker
from penstock.v1.inference_pb2 import Priority

TYPICAL_PROMPT_TOKENS = 512  # prompt tokens assumed for the rank of workers without a ticket
FULL_BATCH_PENALTY_STEPS = 10.0  # steps of delay that a full batch counts as
# A worker that the queue does not expect counts more by these steps of delay and by this share of the new tokens of the
# ticket, because the queue has not checked which promised first tokens the ticket delays there.
UNEXPECTED_WORKER_PENALTY_STEPS = 2.0
UNEXPECTED_WORKER_PENALTY_SHARE = 2.0
EVICTION_PRICE = 1.0  # of a prompt token that evicts another, in prompt tokens, at a cache with the largest turnover
TURNOVER_RANK_S = 0.1  # s that one turnover of its cache adds to the rank of a worker without a ticket
CROSS_ZONE_COST_S = 0.002  # s; round trip to another zone, about a tenth of a step

DelayShareFn = Callable[[int], float]  # `PromptSizes.delay_share`


class Placement(Protocol):
    """Chooses one of the workers that can take a ticket."""

    def load(self, worker: Worker, *, for_batch: bool = False) -> float:
        """Return the rank of a worker without a ticket. The workers with the lowest ranks are the candidates.

        `for_batch`: of a batch ticket, which preempts no lease.
        """

    def choose(self, new_tokens: Mapping[Worker, int], ticket: Ticket, delay_share: DelayShareFn) -> Worker:
        """Choose one of the workers. `new_tokens`: tokens of the prompt that are not cached at each."""


class LowestTtft:
    """Chooses the worker with the lowest cost. In s, where new tokens are those of the prompt that are not cached:

        (new tokens + delay share * prefill backlog + eviction price * new tokens) / prefill rate
        + decode step time * (1 + 10 * used share)

    The first two terms are the expected TTFT, and the delay of the prompts that the worker computes after this one:
    the prompt neither waits for nor delays the rest of the backlog (`PromptSizes`). So a long prompt at a worker does
    not send a prompt away whose prefix is cached there.

    The eviction price, from 0 to 1, is higher the more new tokens the cache of the worker has received relative to its
    size, compared with other workers. Without it, new conversations at low load go to few workers, whose caches evict
    what will be asked for again, while the caches of other workers keep what nobody asks for. With it, the caches of
    all workers evict like one cache of their size.

    The used share, of slots or of promised KV blocks, whichever is larger, stands for the time after the first token:
    decodes share the steps of a worker, and a full pool has no capacity for later tickets. Slots of batch leases that
    can be preempted do not count for a ticket of another class. Rates are those of each worker, so that faster workers
    get more tickets. A worker in another zone than the ticket's edge counts 2 ms more: among similar workers the one in
    the same zone is chosen, but it is not overloaded for it.

    TTFT as the cost of a cached prefix: Qin et al., "Mooncake", FAST 2025, section 5.
    """

    def load(self, worker: Worker, *, for_batch: bool = False) -> float:
        # Not the excess: it would be out of date in workers that receive nothing, as the mean grows.
        turnover = TURNOVER_RANK_S * worker.cache_turnover
        prefill = (worker.prefill_backlog_tokens + TYPICAL_PROMPT_TOKENS) / worker.prefill_tokens_per_s
        return prefill + turnover + _decode_cost(worker, for_batch=for_batch)

    def choose(self, new_tokens: Mapping[Worker, int], ticket: Ticket, delay_share: DelayShareFn) -> Worker:
        zone, expected = ticket.zone, ticket.expected_worker
        for_batch = ticket.priority == Priority.PRIORITY_BATCH

        def rank(worker: Worker) -> tuple[float, str]:
            tokens = new_tokens[worker]
            crossing = CROSS_ZONE_COST_S if zone and worker.zone and worker.zone != zone else 0.0
            is_unexpected = expected and worker.worker_id != expected
            penalty = _unexpected_cost(worker, tokens) if is_unexpected else 0.0
            cost = _prefill_cost(worker, tokens, delay_share(tokens)) + _decode_cost(worker, for_batch=for_batch)
            return cost + crossing + penalty, worker.worker_id

        return min(new_tokens, key=rank)


def _prefill_cost(worker: Worker, tokens: int, delay_share: float) -> float:
    price = EVICTION_PRICE * (1 + worker.excess_turnover) / 2
    return (delay_share * worker.prefill_backlog_tokens + (1 + price) * tokens) / worker.prefill_tokens_per_s


def _unexpected_cost(worker: Worker, tokens: int) -> float:
    delay = UNEXPECTED_WORKER_PENALTY_SHARE * tokens / worker.prefill_tokens_per_s
    return UNEXPECTED_WORKER_PENALTY_STEPS * worker.decode_step_s + delay


def _decode_cost(worker: Worker, *, for_batch: bool) -> float:
    share = worker.used_share if for_batch else worker.kept_share
    return worker.decode_step_s * (1 + FULL_BATCH_PENALTY_STEPS * share)
