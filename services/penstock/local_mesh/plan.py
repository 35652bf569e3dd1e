"""The processes of a local mesh, with their ports and settings. Pure: it starts no process."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from penstock.chassis.config import ConfigError
from penstock.local_mesh.paths import admin_socket, certificate_paths, health_socket, secrets_folder
from penstock.worker.engine.loaders import ModelUnsupported, locate_model

BASE_PORT = 7000
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
REPLICA_PORT_STEP = 10  # between the ports of two replicas
BATCH_PORT = 7029
ENVOY_ADMIN_PORT = 8081
REGION_DOOR_PORT = 8082  # of the first Envoy, for other regions
REGION_LINK_PORT = 8083  # of the relay to the first other region; the next one is a replica step above
METRICS_PORT_OFFSET = 200  # from the gRPC port of a tier to that of its /metrics
OPERATOR = "operator"  # name of the certificate of the commands that manage a mesh
TRUST_DOMAIN = "penstock.local"
NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
# Figures of a snapshot that are 0 soon after the last request, by tier. A shard's `running` is not among them: if the
# end of a run was lost with a scheduler, the shard counts the run for a minute.
FIGURES_ZERO_AT_REST = {
    "edge": ("active_requests", "reservations_open", "held_bytes", "unread_bytes"),
    "auth": ("reservations", "reserved_tokens", "concurrent_requests", "store_pending"),
    "queue": ("waiting", "waiting_tokens", "offered"),
    "scheduler": ("leases", "promised_blocks"),
    "worker": ("running", "waiting", "kv_blocks_used", "leases_expected", "leases_running", "runs_parked"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOptions:
    """The options of `penstock up`."""

    edges: int = 1
    shared_edge_port: bool = False  # the edges listen on the addresses of the first one
    auths: int = 1  # several need the store `postgres`
    queues: int = 1
    schedulers: int = 1
    workers: int = 1
    engine: str = "torch"
    batching: str = "continuous"
    model: str = DEFAULT_MODEL
    batches: int = 0  # processes of the batch tier; several need the store `postgres`
    envoy: bool = True
    # If `envoy`: the number of Envoys. Each has its own routing process, because each has its own port on this host.
    envoys: int = 1
    otlp: str = ""  # URL of an OTLP/gRPC receiver; empty: no export
    base_port: int = BASE_PORT  # the difference to 7000 shifts every port
    store: str = "sqlite"  # of auth and batch: sqlite, or postgres for a server of this mesh
    settings: tuple[str, ...] = ()  # PENSTOCK_<TIER>_<NAME>=VALUE
    insecure: bool = False  # plaintext between the processes, for comparison
    region: str = ""  # of every process; empty: the mesh is the only region
    other_regions: tuple[str, ...] = ()  # NAME=HOST:PORT, where processes of this region reach the door of another one
    home_region: str = ""  # region that keeps the tenants of all regions; empty: each region keeps its own


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process: how to start it, and its addresses."""

    name: str
    tier: str
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    address: str = ""  # host:port of its gRPC server, or of Envoy's listener
    http: str = ""  # host:port of its HTTP server; empty: none
    admin: str = ""  # host:port of Envoy's admin interface; empty: not an Envoy
    admin_target: str = ""  # unix:path of its Admin service; empty: on `address`, as in a previous release
    metrics: str = ""  # host:port of its /metrics; empty: none
    health: str = ""  # address of its probes' listener, in plaintext; empty: health on `address`
    proxy_doors: tuple[str, ...] = ()  # host:port for proxies: gRPC and HTTP
    is_mutual: bool = False  # whether `address` requires a certificate
    region: str = ""

    @property
    def instance_id(self) -> str:
        """The instance of its certificate, which no process of another region has."""
        return f"{self.region}-{self.name}" if self.region else self.name

    @property
    def admin_address(self) -> str:
        """Address of its Admin service."""
        return self.admin_target or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """The processes in the order of their start, and the addresses for callers."""

    processes: tuple[ProcessSpec, ...]
    grpc: str
    http: str
    proxy: str = ""  # host:port of the first Envoy, gRPC and HTTP on one port; empty: none

    @property
    def proxies(self) -> list[str]:
        """Addresses of all Envoys."""
        return [each.address for each in self.processes_of("envoy")]

    def processes_of(self, tier: str) -> list[ProcessSpec]:
        return [each for each in self.processes if each.tier == tier]


def local_address(base_port: int, port: int, replica: int = 0) -> str:
    """Return host:port of a replica; `port` is that of the first one in a mesh at the default base port."""
    return f"127.0.0.1:{port - BASE_PORT + base_port + replica * REPLICA_PORT_STEP}"


def check_model(model: str) -> None:
    """Raises ConfigError if no files of `model` are installed."""
    try:
        locate_model(model)
    except ModelUnsupported as error:
        raise ConfigError(str(error)) from error


def plan_mesh(
    options: MeshOptions,
    folder: Path,
    api_key: str,
    *,
    envoy: str | None = None,
    cores: int = 1,
    sockets: Path | None = None,
    store: str = "",
    response_keys: str = "",
    auth_secrets: Mapping[str, str] = NO_SETTINGS,
) -> MeshPlan:
    """Plan a mesh. `folder` holds the auth store and Envoy's bootstrap; `envoy` is the program, None to run without.

    The workers divide `cores` among them, because engines that each use all cores wait for one another. `sockets` is
    the folder of the processes' Admin sockets, None for `folder`. `store` is the URL of auth's store, empty for a
    SQLite file in `folder`. Without `response_keys`, edges store no responses. `auth_secrets` are settings of auth that
    all regions share.
    """
    store = store or str(folder / "auth.sqlite")
    planner = _Planner(
        options,
        folder,
        api_key,
        cores,
        sockets=sockets or folder,
        store=store,
        response_keys=response_keys,
        auth_secrets=auth_secrets,
    )
    processes = tuple(planner.processes(envoy if options.envoy else None))
    edge = next(each for each in processes if each.tier == "edge")
    proxy = next((each.address for each in processes if each.tier == "envoy"), "")
    return MeshPlan(processes=processes, grpc=edge.address, http=edge.http, proxy=proxy)


class _Planner:
    def __init__(
        self,
        options: MeshOptions,
        folder: Path,
        api_key: str,
        cores: int,
        *,
        sockets: Path,
        store: str,
        response_keys: str,
        auth_secrets: Mapping[str, str],
    ) -> None:
        self.options = options
        self.folder = folder
        self.api_key = api_key
        self.cores = cores
        self.sockets = sockets
        self.store = store
        self.response_keys = response_keys
        self.auth_secrets = auth_secrets
        self.has_envoy = False

    def address(self, port: int, replica: int = 0) -> str:
        return local_address(self.options.base_port, port, replica)

    def addresses(self, port: int, count: int) -> str:
        return ",".join(self.address(port, replica) for replica in range(count))

    def processes(self, envoy: str | None) -> Iterator[ProcessSpec]:
        options, self.has_envoy = self.options, bool(envoy)
        for replica in range(options.auths):
            yield self.auth(replica)
        for replica in range(options.queues):
            yield self.tier_process("queue", replica, 7003)
        for replica in range(options.schedulers):
            yield self.tier_process("scheduler", replica, 7004, QUEUES=self.addresses(7003, options.queues))
        for replica in range(options.workers):
            yield self.worker(replica)
        for replica in range(options.edges):
            yield self.edge(replica)
        for replica in range(options.batches):
            yield self.batch(replica)
        if envoy:
            for replica in range(options.envoys):
                yield self.routing(replica)
                yield self.envoy(envoy, replica)

    def auth(self, replica: int) -> ProcessSpec:
        checks = self.address(7007, replica) if self.has_envoy else ""
        own = {"STORE": self.store, "DEV_KEY": self.api_key, "CHECK_LISTEN": checks}
        if "://" in self.store:  # a file beside it is the default
            own["AUDIT_LOG"] = str(self.folder / f"{self.name('auth', replica)}.audit.jsonl")
        return self.tier_process("auth", replica, 7002, **own, **self.home_settings())

    def home_settings(self) -> dict[str, str]:
        """Return the settings of auth that are about the home region of tenants."""
        home, doors = self.options.home_region, dict(each.split("=", 1) for each in self.options.other_regions)
        if not (home and doors and self.has_envoy):
            return {}
        if home == self.options.region:
            return {"HOME": home, "SPENDING_REGIONS": ",".join(doors), **self.auth_secrets}
        return {"HOME": home, "HOME_DOOR": doors[home], **self.auth_secrets}

    def worker(self, replica: int) -> ProcessSpec:
        options = self.options
        schedulers = [self.address(7004, each) for each in range(options.schedulers)]
        own = replica % len(schedulers)  # spreads the workers; the other schedulers are for failover
        return self.tier_process(
            "worker",
            replica,
            7005,
            SCHEDULERS=",".join(schedulers[own:] + schedulers[:own]),
            MODEL=options.model,
            ENGINE=options.engine,
            BATCHING=options.batching,
            THREADS=str(max(1, self.cores // options.workers)),
        )

    def edge(self, replica: int) -> ProcessSpec:
        place = self.edge_place(replica)
        http = self.address(7080, place)
        queues, auths = self.addresses(7003, self.options.queues), self.addresses(7002, self.options.auths)
        own = {"HTTP_LISTEN": http, "QUEUES": queues, "AUTHS": auths, "RESPONSE_KEYS": self.response_keys}
        own["BATCHES"] = self.addresses(BATCH_PORT, self.options.batches)
        if self.has_envoy and self.options.other_regions:
            own["REGIONS"] = ",".join(self.options.other_regions)
            own["ROUTINGS"] = self.addresses(7006, self.options.envoys)
        doors = self.proxy_doors(replica)
        if doors:
            own |= {"PROXY_LISTEN": doors[0], "PROXY_HTTP_LISTEN": doors[1]}
        if not self.options.shared_edge_port:
            return self.tier_process("edge", replica, 7001, http=http, **own)
        health = f"unix:{health_socket(self.sockets, self.name('edge', replica))}"
        own |= {"REUSE_PORT": "true", "HEALTH_LISTEN": health}
        return replace(self.tier_process("edge", replica, 7001, http=http, **own), health=health)

    def edge_place(self, replica: int) -> int:
        """Return the replica whose ports an edge has."""
        return 0 if self.options.shared_edge_port else replica

    def proxy_doors(self, replica: int) -> tuple[str, ...]:
        """Return the addresses of an edge for proxies and the batch tier; none if they use its doors for clients."""
        if self.options.insecure or not (self.has_envoy or self.options.batches):
            return ()
        return tuple(self.address(port, self.edge_place(replica)) for port in (7008, 7088))

    def batch(self, replica: int) -> ProcessSpec:
        port = 7001 if self.options.insecure else 7008
        edges = dict.fromkeys(self.address(port, self.edge_place(each)) for each in range(self.options.edges))
        store = self.store if "://" in self.store else str(self.folder / "batch.sqlite")
        own = {"STORE": store, "FOLDER": str(self.folder / "batch-files")}
        return self.tier_process("batch", replica, BATCH_PORT, EDGES=",".join(edges), **own)

    def routing(self, replica: int) -> ProcessSpec:
        ports = (7001, 7080) if self.options.insecure else (7008, 7088)
        places = dict.fromkeys(map(self.edge_place, range(self.options.edges)))
        edges = ["/".join(self.address(port, each) for port in ports) for each in places]
        secrets = "" if self.options.insecure else str(secrets_folder(self.folder, self.name("envoy", replica)))
        door, auths = self.address(8080, replica), self.addresses(7007, self.options.auths)
        envoy = {"ENVOY_LISTEN": door, "ENVOY_SECRETS": secrets, "AUTHS": auths}
        envoy["REGION_LISTEN"] = self.address(REGION_DOOR_PORT, replica) if self.options.region else ""
        if self.options.other_regions:
            if self.options.home_region == self.options.region:
                envoy["REGION_AUTHS"] = self.addresses(7002, self.options.auths)
            envoy["REGIONS"] = ",".join(self.options.other_regions)
            envoy["REGIONS_STATE"] = str(self.folder / "regions.json")
            envoy["PROXY_STATS"] = self.addresses(ENVOY_ADMIN_PORT, self.options.envoys)
        return self.tier_process("routing", replica, 7006, EDGES=",".join(edges), **envoy)

    def envoy(self, program: str, replica: int) -> ProcessSpec:
        name = self.name("envoy", replica)
        argv = (program, "-c", str(self.folder / f"{name}.json"), "--concurrency", "1", "--disable-hot-restart")
        return ProcessSpec(
            name=name,
            tier="envoy",
            argv=(*argv, "-l", "warning"),
            address=self.address(8080, replica),
            admin=self.address(ENVOY_ADMIN_PORT, replica),
            region=self.options.region,
        )

    def name(self, tier: str, replica: int) -> str:
        """Return the name of a process, with a number if there may be several of its tier."""
        counts = {
            "auth": self.options.auths,
            "batch": self.options.batches,
            "routing": self.options.envoys,
            "envoy": self.options.envoys,
        }
        return tier if counts.get(tier) == 1 else f"{tier}-{replica + 1}"

    def tier_process(self, tier: str, replica: int, port: int, http: str = "", **settings: str) -> ProcessSpec:
        place = self.edge_place(replica) if tier == "edge" else replica
        listen, name = self.address(port, place), self.name(tier, replica)
        admin, metrics = f"unix:{admin_socket(self.sockets, name)}", self.address(port + METRICS_PORT_OFFSET, replica)
        own = {"LISTEN": listen, "ADMIN_LISTEN": admin, "METRICS_LISTEN": metrics}
        own |= {"OTLP_ENDPOINT": self.options.otlp, **settings}
        environment = {f"PENSTOCK_{tier.upper()}_{name}": value for name, value in own.items() if value}
        for setting in self.options.settings:
            variable, _, value = setting.partition("=")
            if variable.startswith(f"PENSTOCK_{tier.upper()}_"):
                environment[variable] = value
        return ProcessSpec(
            name=name,
            tier=tier,
            argv=(sys.executable, "-m", f"penstock.{tier}"),
            environment={**self.tls_settings(name), **self.region_settings(), **environment},
            address=listen,
            http=http,
            metrics=environment.get(f"PENSTOCK_{tier.upper()}_METRICS_LISTEN", ""),
            proxy_doors=self.proxy_doors(replica) if tier == "edge" else (),
            is_mutual=not self.options.insecure and tier != "edge",  # an edge's own address is for clients
            admin_target=environment.get(f"PENSTOCK_{tier.upper()}_ADMIN_LISTEN", ""),
            region=self.options.region,
        )

    def region_settings(self) -> dict[str, str]:
        """Return the settings of all tiers that name the region, or none."""
        return {"PENSTOCK_REGION": self.options.region} if self.options.region else {}

    def tls_settings(self, name: str) -> dict[str, str]:
        """Return the settings of all tiers that name a process's certificate, or none."""
        paths = certificate_paths(self.folder, name)
        files = {"CERTIFICATE": paths.certificate, "KEY": paths.key, "CA": paths.authorities}
        chosen = {f"PENSTOCK_TLS_{each}": "" if self.options.insecure else str(path) for each, path in files.items()}
        return {**chosen, "PENSTOCK_TRUST_DOMAIN": TRUST_DOMAIN, "PENSTOCK_INSECURE": str(self.options.insecure)}
