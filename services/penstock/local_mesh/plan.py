"""Which processes make a mesh on this machine, with which ports and settings. Pure: starts nothing."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.chassis.config import ConfigError
from penstock.worker.engine.loaders import ModelUnsupported, locate_model

BASE_PORT = 7000
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
REPLICA_PORT_STEP = 10  # ports of replicas count upward by this


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOptions:
    """What `penstock up` was asked for."""

    edges: int = 1
    queues: int = 1
    schedulers: int = 1
    workers: int = 1
    engine: str = "torch"
    batching: str = "continuous"
    model: str = DEFAULT_MODEL
    envoy: bool = True
    # If `envoy`: the number of Envoys. Each has its own routing process, because each has its own port on this host.
    envoys: int = 1
    otlp: str = ""  # URL of an OTLP/gRPC receiver; empty: no export
    base_port: int = BASE_PORT  # shifts every port by its distance from 7000
    settings: tuple[str, ...] = ()  # further PENSTOCK_*=value for the tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process: how to start it and where it answers."""

    name: str
    tier: str
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    address: str = ""  # host:port of its gRPC server, or of Envoy's listener
    http: str = ""  # host:port of its HTTP server, if it has one
    admin: str = ""  # host:port of Envoy's admin interface, if it is one


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """The processes in the order in which they are started, and the addresses callers use."""

    processes: tuple[ProcessSpec, ...]
    grpc: str
    http: str
    proxy: str = ""  # Envoy, gRPC and HTTP on one port; empty: none

    @property
    def proxies(self) -> list[str]:
        """Addresses of all Envoys."""
        return [each.address for each in self.processes_of("envoy")]

    def processes_of(self, tier: str) -> list[ProcessSpec]:
        return [each for each in self.processes if each.tier == tier]


def check_model(model: str) -> None:
    """Raises ConfigError where no files of `model` are installed here."""
    try:
        locate_model(model)
    except ModelUnsupported as error:
        raise ConfigError(str(error)) from error


def plan_mesh(
    options: MeshOptions, folder: Path, api_key: str, *, envoy: str | None = None, cores: int = 1
) -> MeshPlan:
    """Lay out a mesh. `folder` holds the auth store and Envoy's bootstrap; `envoy` is the program, None for none.

    The workers share `cores`: engines that each take all of them spend their steps waiting for one another.
    """
    planner = _Planner(options, folder, api_key, cores)
    processes = tuple(planner.processes(envoy if options.envoy else None))
    edge = next(each for each in processes if each.tier == "edge")
    front = next((each.address for each in processes if each.tier == "envoy"), "")
    return MeshPlan(processes=processes, grpc=edge.address, http=edge.http, proxy=front)


class _Planner:
    def __init__(self, options: MeshOptions, folder: Path, api_key: str, cores: int) -> None:
        self.options = options
        self.folder = folder
        self.api_key = api_key
        self.cores = cores

    def address(self, port: int, replica: int = 0) -> str:
        return f"127.0.0.1:{port - BASE_PORT + self.options.base_port + replica * REPLICA_PORT_STEP}"

    def addresses(self, port: int, count: int) -> str:
        return ",".join(self.address(port, replica) for replica in range(count))

    def processes(self, envoy: str | None) -> Iterator[ProcessSpec]:
        asked = self.options
        yield self.tier_process("auth", 0, 7002, STORE=str(self.folder / "auth.sqlite"), DEV_KEY=self.api_key)
        for replica in range(asked.queues):
            yield self.tier_process("queue", replica, 7003)
        for replica in range(asked.schedulers):
            yield self.tier_process("scheduler", replica, 7004, QUEUES=self.addresses(7003, asked.queues))
        for replica in range(asked.workers):
            yield self.worker(replica)
        for replica in range(asked.edges):
            yield self.edge(replica)
        if envoy:
            for replica in range(asked.envoys):
                yield self.routing(replica)
                yield self.envoy(envoy, replica)

    def worker(self, replica: int) -> ProcessSpec:
        asked = self.options
        schedulers = [self.address(7004, each) for each in range(asked.schedulers)]
        own = replica % len(schedulers)  # spread the workers; the others are where it goes when its own dies
        return self.tier_process(
            "worker",
            replica,
            7005,
            SCHEDULERS=",".join(schedulers[own:] + schedulers[:own]),
            MODEL=asked.model,
            ENGINE=asked.engine,
            BATCHING=asked.batching,
            THREADS=str(max(1, self.cores // asked.workers)),
        )

    def edge(self, replica: int) -> ProcessSpec:
        http = self.address(7080, replica)
        queues, auths = self.addresses(7003, self.options.queues), self.address(7002)
        return self.tier_process("edge", replica, 7001, http=http, HTTP_LISTEN=http, QUEUES=queues, AUTHS=auths)

    def routing(self, replica: int) -> ProcessSpec:
        edges = ",".join(f"{self.address(7001, each)}/{self.address(7080, each)}" for each in range(self.options.edges))
        return self.tier_process("routing", replica, 7006, EDGES=edges, ENVOY_LISTEN=self.address(8080, replica))

    def envoy(self, program: str, replica: int) -> ProcessSpec:
        name = self.name("envoy", replica)
        argv = (program, "-c", str(self.folder / f"{name}.json"), "--concurrency", "1", "--disable-hot-restart")
        address, admin = self.address(8080, replica), self.address(8081, replica)
        return ProcessSpec(name=name, tier="envoy", argv=(*argv, "-l", "warning"), address=address, admin=admin)

    def name(self, tier: str, replica: int) -> str:
        """A number follows where there may be several."""
        is_single = tier == "auth" or (tier in ("routing", "envoy") and self.options.envoys == 1)
        return tier if is_single else f"{tier}-{replica + 1}"

    def tier_process(self, tier: str, replica: int, port: int, http: str = "", **settings: str) -> ProcessSpec:
        listen = self.address(port, replica)
        own = {"LISTEN": listen, "OTLP_ENDPOINT": self.options.otlp, **settings}
        environment = {f"PENSTOCK_{tier.upper()}_{name}": value for name, value in own.items() if value}
        for setting in self.options.settings:
            name, _, value = setting.partition("=")
            if name.startswith(f"PENSTOCK_{tier.upper()}_"):
                environment[name] = value
        argv, name = (sys.executable, "-m", f"penstock.{tier}"), self.name(tier, replica)
        return ProcessSpec(name=name, tier=tier, argv=argv, environment=environment, address=listen, http=http)
