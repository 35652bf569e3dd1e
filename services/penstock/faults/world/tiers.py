"""The processes of one mesh; each runs the composition root of its tier with a complete configuration."""

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock.auth.__main__ import run_auth
from penstock.auth.config import AuthConfig
from penstock.batch.__main__ import run_batch
from penstock.batch.config import BatchConfig
from penstock.edge.__main__ import run_edge
from penstock.edge.config import EdgeConfig
from penstock.faults.checks.allowed_failures import PATIENCE_S
from penstock.faults.grpc.network import Network
from penstock.faults.world.engines import EnginePool, FakeEngineProcess
from penstock.faults.world.host_clock import HostClock
from penstock.faults.world.process import Main, Process
from penstock.queue.__main__ import run as run_queue
from penstock.queue.config import QueueConfig
from penstock.scheduler.__main__ import run as run_scheduler
from penstock.scheduler.config import SchedulerConfig
from penstock.worker.__main__ import run as run_worker
from penstock.worker.config import EngineKind, WorkerConfig

API_KEY = "pk_dev_0123456789abcdefghijklmn"
PEPPER = "p" * 32
BASE_PORT = 7000
HTTP_PORT_OFFSET = 50  # from the port of an edge
RESPONSE_KEYS = "faults:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # of 32 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshShape:
    """The number of processes of each tier, and the size of the engines."""

    edges: int = 2
    auths: int = 1  # several share a database
    queues: int = 2
    schedulers: int = 2
    workers: int = 2
    slots: int = 3
    kv_blocks: int = 24
    block_size: int = 8  # tokens
    token_budget: int = 24  # tokens per step
    response_buffer_bytes: int = 65_536
    has_responses: bool = False  # edges serve HTTP, and store responses
    batches: int = 0  # replicas of the batch tier, which share a database; above 0, edges serve HTTP
    max_depth: int = 100_000  # tickets that wait in a shard
    other: "MeshShape | None" = None  # the next region of the world
    doors: tuple[str, ...] = ()  # other regions and their doors, as edges have them
    region: str = ""  # before a hyphen and the names of its processes; empty: the clients' region
    first_port: int = BASE_PORT
    home_auths: tuple[str, ...] = ()  # addresses, in the place of an auth of its own, which guests need not
    home_door: str = ""  # address through which auth follows `home`; empty: it keeps its tenants itself
    home: str = ""  # region that keeps the tenants
    spending_regions: tuple[str, ...] = ()  # that follow this region

    def addresses(self, tier: str) -> tuple[str, ...]:
        count = {
            "edge": self.edges,
            "auth": self.auths,
            "queue": self.queues,
            "scheduler": self.schedulers,
            "worker": self.workers,
            "batch": self.batches,
        }
        if tier == "auth" and self.home_auths:
            return self.home_auths
        port = self.first_port + 100 * list(count).index(tier)
        return tuple(f"127.0.0.1:{port + number}" for number in range(count[tier]))

    @property
    def has_http(self) -> bool:
        return self.has_responses or bool(self.batches)

    @property
    def http_addresses(self) -> tuple[str, ...]:
        return tuple(http_address(each) for each in self.addresses("edge"))

    def names(self, tier: str) -> list[str]:
        prefix = f"{self.region}-" if self.region else ""
        return [f"{prefix}{tier}{number}" for number in range(len(self.addresses(tier)))]

    @property
    def regions(self) -> "tuple[MeshShape, ...]":
        return (self, *(self.other.regions if self.other else ()))

    def with_other_region(self, max_depth: int) -> "MeshShape":
        """Return two regions, of which this one rejects tickets beyond `max_depth` waiting ones."""
        other = replace(
            self,
            edges=1,
            queues=1,
            schedulers=1,
            batches=0,
            region="us",
            first_port=BASE_PORT + 1_000,
            home_auths=self.addresses("auth"),
        )
        return replace(self, max_depth=max_depth, other=other, doors=(f"us={other.addresses('edge')[0]}",))

    def random_clocks(self, rng: random.Random) -> dict[str, HostClock]:
        """Return a clock for the host of each process. Clients keep the time of the world."""
        names = (name for each in self.regions for tier in (*TIERS, "batch") for name in each.names(tier))
        return {name: HostClock.random(rng) for name in names}


def http_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + HTTP_PORT_OFFSET}"


TIERS = ("edge", "auth", "queue", "scheduler", "worker")  # of every mesh


@dataclass
class Tiers:
    """All processes of the mesh by name, engines included."""

    network: Network
    shape: MeshShape
    engine_pool: EnginePool
    processes: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for region in self.shape.regions:
            own_auth = () if region.home_auths else ("auth",)
            self._add_region(region, (*own_auth, "queue", "scheduler", "worker", "edge", "batch"))

    def _add_region(self, shape: MeshShape, tiers: Sequence[str]) -> None:
        for tier in tiers:
            for name, address in zip(shape.names(tier), shape.addresses(tier), strict=True):
                self._add(shape, name, tier, address)

    def start(self) -> None:
        for process in list(self.processes.values()):
            if process.tier != "engine":
                process.start()

    def of(self, *tiers: str) -> list[Process]:
        return [each for each in self.processes.values() if each.tier in tiers]

    def at_home(self, tier: str) -> list[Process]:
        """Return the processes of a tier in the clients' region."""
        names = self.shape.names(tier)
        return [each for each in self.of(tier) if each.name in names]

    def _add(self, shape: MeshShape, name: str, tier: str, address: str) -> None:
        main: Main = partial(_MAINS[tier], shape, address)
        process = self.processes[name] = Process(name, tier, address, main, self.network)
        if tier == "worker":
            engine = FakeEngineProcess(f"{name}.engine", "engine", "", main, self.network)
            self.processes[engine.name] = self.engine_pool.engines[name] = engine
            process.children.append(engine)


def _edge(shape: MeshShape, address: str, instance_id: str) -> Coroutine[Any, Any, None]:
    return run_edge(
        EdgeConfig(
            listen=address,
            instance_id=instance_id,
            auths=shape.addresses("auth"),
            queues=shape.addresses("queue"),
            upstream_timeout=PATIENCE_S,
            cancel_ack_timeout=5.0,
            drain_grace=3.0,
            response_buffer_bytes=shape.response_buffer_bytes,
            http_listen=http_address(address) if shape.has_http else "",
            response_keys=RESPONSE_KEYS if shape.has_responses else "",
            batches=shape.addresses("batch"),
            region=shape.region,
            regions=shape.doors,
            spill_stay=(),
        ),
    )


def _auth(shape: MeshShape, address: str, instance_id: str) -> Coroutine[Any, Any, None]:
    config = AuthConfig(
        listen=address,
        instance_id=instance_id,
        region=shape.region,
        dev_key=API_KEY,
        pepper=PEPPER,
        mesh_secret="m" * 32,
        edge_grace=4.0,
        fallback_tokens=200,
        home=shape.home,
        home_door=shape.home_door,
        spending_regions=shape.spending_regions,
    )
    return run_auth(config)


def _queue(shape: MeshShape, address: str, instance_id: str) -> Coroutine[Any, Any, None]:
    return run_queue(
        QueueConfig(
            listen=address,
            instance_id=instance_id,
            max_depth=shape.max_depth,
            recent_lease_ttl=4.0,
            drain_grace=1.0,
            unavailable_model_timeout=PATIENCE_S,
        )
    )


def _scheduler(shape: MeshShape, address: str, instance_id: str) -> Coroutine[Any, Any, None]:
    config = SchedulerConfig(
        listen=address, instance_id=instance_id, queues=shape.addresses("queue"), lease_ttl=2.0, drain_grace=1.0
    )
    return run_scheduler(config)


def _worker(shape: MeshShape, address: str, instance_id: str) -> Coroutine[Any, Any, None]:
    config = WorkerConfig(
        listen=address,
        instance_id=instance_id,
        schedulers=shape.addresses("scheduler"),
        engine=EngineKind.SIM,
        slots=shape.slots,
        kv_blocks=shape.kv_blocks,
        block_size=shape.block_size,
        token_budget=shape.token_budget,
        engine_stall_timeout=3.0,
        drain_grace=3.0,
    )
    return run_worker(config)


def _batch(shape: MeshShape, address: str, instance_id: str) -> Coroutine[Any, Any, None]:
    return run_batch(
        BatchConfig(listen=address, instance_id=instance_id, edges=shape.addresses("edge"), drain_grace=3.0)
    )


_MAINS: dict[str, Callable[[MeshShape, str, str], Coroutine[Any, Any, None]]] = {
    "edge": _edge,
    "auth": _auth,
    "queue": _queue,
    "scheduler": _scheduler,
    "worker": _worker,
    "batch": _batch,
}
