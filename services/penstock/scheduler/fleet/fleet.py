"""The fleet: all workers that are attached to one scheduler."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.mesh.limits.bounds import MODELS
from penstock.mesh.v1.ticket_pb2 import CatalogEntry
from penstock.scheduler.fleet.placement import LowestTtft, Placement
from penstock.scheduler.fleet.pool import Pool
from penstock.scheduler.fleet.worker import Worker

PLACED_PREFIXES_INTERVAL_S = 5.0  # placed prompts stand for their blocks this long, and up to twice as long


@dataclass
class Fleet:
    """All workers by stream, by instance id and by key of their model."""

    placement: Placement = field(default_factory=LowestTtft)
    pools: dict[str, Pool] = field(default_factory=dict)  # by model; a pool has at least one worker
    _workers: dict[str, Worker] = field(default_factory=dict)  # by stream
    _by_worker_id: dict[str, Worker] = field(default_factory=dict)  # by instance id
    _prefixes_expire_at: float = 0.0  # s

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __contains__(self, key: object) -> bool:
        return key in self._workers

    def __getitem__(self, key: str) -> Worker:
        return self._workers[key]

    def get(self, key: str) -> Worker | None:
        return self._workers.get(key)

    def add(self, worker: Worker) -> None:
        self._workers[worker.key] = self._by_worker_id[worker.worker_id] = worker
        if worker.model not in self.pools:
            self.pools[worker.model] = Pool(self.placement)
        self.pools[worker.model].add(worker)

    def remove(self, worker: Worker) -> None:
        del self._workers[worker.key], self._by_worker_id[worker.worker_id]
        pool = self.pools[worker.model]
        pool.remove(worker)
        if not pool:
            del self.pools[worker.model]

    def by_worker_id(self, worker_id: str) -> Worker | None:
        """Return the worker with this instance id, on any stream; None if it is not attached."""
        return self._by_worker_id.get(worker_id)

    def tick(self, now: float) -> None:
        if now >= self._prefixes_expire_at:
            self._prefixes_expire_at = now + PLACED_PREFIXES_INTERVAL_S
            for pool in self.pools.values():
                pool.prefix_index.expire_placed()

    def models(self) -> list[str]:
        return sorted(self.pools)

    def catalog(self) -> tuple[CatalogEntry, ...]:
        return tuple(self.pools[model].catalog_entry() for model in self.models()[:MODELS])
