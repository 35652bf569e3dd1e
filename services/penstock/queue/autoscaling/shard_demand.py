"""The demand of one shard over all models: its tickets, and the requests that edges hold. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.mesh.limits.bounds import MODELS, WORKERS
from penstock.mesh.model_key import model_name
from penstock.mesh.v1.queue_pb2 import Demand, HeldModel, ModelDemand
from penstock.queue.accounting import ServiceAccounting
from penstock.queue.autoscaling.demand import WorkersNeeded
from penstock.queue.models.model_queue import ModelQueue, ModelQueues
from penstock.queue.policies.policy import NO_TICKETS
from penstock.v1.inference_pb2 import PRIORITY_BATCH

HELD_TTL_S = 3.0  # s; edges report the requests that they hold once a second
MAX_HELD_MODELS = 1_024  # models of one edge; the rest is ignored


class HeldRequests(NamedTuple):
    """The latest report of one edge."""

    received_at: float  # s
    by_model: Mapping[str, int]  # requests, by name


class ShardDemand:
    """Reports the workers that the work of one shard needs."""

    def __init__(self, model_queues: ModelQueues, accounting: ServiceAccounting, *, complete_at: float) -> None:
        """`complete_at`: the time in s until which edges may not have sent all tickets to a shard that has started."""
        self._model_queues = model_queues
        self._accounting = accounting
        self._complete_at = complete_at
        self._held: dict[str, HeldRequests] = {}  # by edge

    def on_held_requests(self, edge: str, models: Iterable[HeldModel], now: float) -> bool:
        """Apply a report of an edge. Return whether it names a model that no edge has held requests for."""
        before = self._held_by_model(now)
        named = {each.model: each.requests for each in models if each.requests}
        self._held[edge] = HeldRequests(now, dict(list(named.items())[:MAX_HELD_MODELS]))
        return not before.keys() >= named.keys()

    def on_edge_disconnected(self, edge: str) -> None:
        self._held.pop(edge, None)

    def report(self, now: float) -> Demand | None:
        """Return the demand of all models; None while it is incomplete."""
        if now < self._complete_at:
            return None
        held, versions = self._held_by_model(now), dict[str, list[ModelQueue]]()
        for queue in self._model_queues:
            versions.setdefault(model_name(queue.model), []).append(queue)
        models = []
        for name in sorted(versions.keys() | held.keys()):
            needed = self._needed(versions.get(name, ()), held.get(name, 0), now)
            if needed.workers:
                by_way = (min(each, WORKERS) for each in needed)
                models.append(ModelDemand(model=name, **dict(zip(WorkersNeeded._fields, by_way, strict=True))))
        return Demand(models=models[:MODELS])

    def _needed(self, versions: Iterable[ModelQueue], held: int, now: float) -> WorkersNeeded:
        """Return the workers for all versions of a model. Held requests count as tickets of the newest version."""
        needed = WorkersNeeded()
        newest_first = list(versions)[::-1]
        if not newest_first and held:
            return WorkersNeeded(by_slots=1.0)
        for queue in newest_first:
            running = self._accounting.running_totals.get(queue.model, NO_TICKETS)
            batch = self._accounting.running_by_class.get((queue.model, PRIORITY_BATCH), 0)
            needed = needed.plus(queue.workers_needed(running, batch, held, now))
            held = 0
        return needed

    def _held_by_model(self, now: float) -> dict[str, int]:
        totals: dict[str, int] = {}
        for edge, held in list(self._held.items()):
            if now - held.received_at > HELD_TTL_S:
                del self._held[edge]
                continue
            for model, requests in held.by_model.items():
                totals[model] = totals.get(model, 0) + requests
        return totals
