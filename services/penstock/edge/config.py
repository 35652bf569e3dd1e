"""Settings of the edge."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from penstock.chassis.config import ServiceConfig, check_address, setting
from penstock.chassis.region_doors import parse_doors
from penstock.edge.api.http.connections import ConnectionLimits
from penstock.edge.auth_fallback.pending import AuthFallbackLimits
from penstock.edge.lifecycle.record import LifecycleLimits
from penstock.edge.request.limits import TIMEOUT_S
from penstock.edge.stored.cipher import parse_keys
from penstock.mesh.class_names import CLASSES


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeConfig(ServiceConfig):
    """Settings of `PENSTOCK_EDGE_*`."""

    former_names: ClassVar[Mapping[str, str]] = {
        "max_flights": "max_active_requests",
        "max_bytes": "max_held_bytes",
        "client_buffer": "response_buffer_bytes",
        "patience": "upstream_timeout",
        "receipt_timeout": "cancel_ack_timeout",
        "identify_patience": "identify_timeout",
        "grace_after": "auth_fallback_after",
        "grace_for": "auth_fallback_duration",
        "grace_memory": "auth_fallback_identity_ttl",
        "grace_callers": "auth_fallback_max_identities",
        "arrival_patience": "startup_timeout",
        "model_patience": "model_wait_timeout",
        "worker_idle": "worker_idle_timeout",
    }

    listen: str = setting("127.0.0.1:7001", "Address of the gRPC API `penstock.v1.Inference`.", unit="host:port")
    http_listen: str = setting("", "Address of the OpenAI HTTP API. Empty: off.", unit="host:port")
    proxy_listen: str = setting(
        "",
        "Second address of the gRPC API, for proxies that present a certificate of tier envoy. Empty: off. Without it, "
        "proxies use `listen`, which requires the certificate unless it is on loopback.",
        unit="host:port",
    )
    proxy_http_listen: str = setting(
        "", "Second address of the HTTP API, for proxies, in the same way. Empty: off.", unit="host:port"
    )
    reuse_port: bool = setting(
        False,
        "Whether other edges of this host or pod that have this setting may listen on the same four addresses; the "
        "kernel divides new connections among them (SO_REUSEPORT). Each needs its own addresses for operators, probes "
        "and metrics.",
    )
    auths: tuple[str, ...] = setting(("127.0.0.1:7002",), "Auth processes: host:port or dns:///name:port.")
    batches: tuple[str, ...] = setting(
        (), "Processes of the tier `batch`: host:port or dns:///name:port. Empty: no batches."
    )
    routings: tuple[str, ...] = setting(
        (),
        "Routing processes: host:port or dns:///name:port. They report a drain of the own region. Empty: the edge does "
        "not learn of it.",
    )
    queues: tuple[str, ...] = setting(
        ("127.0.0.1:7003",), "Queue shards: host:port or dns:///name:port. Every edge must have the same list."
    )
    max_active_requests: int = setting(20_000, "Most requests at one time; a further one fails with EDGE_FULL.")
    max_held_bytes: int = setting(
        512 * 2**20,
        "Most memory for prompts, their token ids and unread output. Beyond three quarters of it prompts fail with "
        "EDGE_FULL; beyond all of it the requests with the most unread output fail with CLIENT_TOO_SLOW.",
        unit="bytes",
    )
    response_buffer_bytes: int = setting(
        64 * 2**10,
        "Output of one request that the client has not read. A request beyond it fails with CLIENT_TOO_SLOW.",
        unit="bytes",
    )
    default_timeout: float = setting(600.0, "Deadline of requests that set none, at most one day.", unit="s")
    default_output_tokens: int = setting(1_024, "Output limit of requests that set none.", unit="tokens")
    max_attempts: int = setting(4, "Most runs of one request, the first one included.")
    upstream_timeout: float = setting(
        30.0, "Longest wait for auth, for any queue shard, or in the middle of an answer for any worker.", unit="s"
    )
    cancel_ack_timeout: float = setting(30.0, "Longest wait for a worker to acknowledge a cancel.", unit="s")
    identify_timeout: float = setting(5.0, "Longest wait for auth to identify a caller.", unit="s")
    auth_fallback_after: float = setting(
        1.0,
        "Silence of auth after which the edge admits recently authenticated callers by itself (auth fallback).",
        unit="s",
    )
    auth_fallback_duration: float = setting(
        60.0,
        "Longest auth fallback in one outage. A key that is revoked in the meantime works until then. 0: never.",
        unit="s",
    )
    auth_fallback_identity_ttl: float = setting(
        600.0, "Time after its last admission for which auth fallback accepts a caller.", unit="s"
    )
    auth_fallback_max_identities: int = setting(10_000, "Most callers in the identity cache of auth fallback.")
    startup_timeout: float = setting(
        5.0, "Longest wait at the start for auth, a queue shard and the model cards; then the edge listens.", unit="s"
    )
    model_wait_timeout: float = setting(5.0, "Longest wait for the card of a model that a queue announced.", unit="s")
    worker_idle_timeout: float = setting(
        60.0, "Time without a run after which the stream to a worker is closed.", unit="s"
    )
    regions: tuple[str, ...] = setting(
        (),
        "Other regions in order of preference, `name=host:port` with the address of the region door of their proxies. "
        "Requests that the queue rejects for load are offered to them. Empty: requests stay.",
    )
    spill_stay: tuple[str, ...] = setting(
        ("batch",), "Classes whose requests are not offered to other regions: interactive, standard, batch."
    )
    max_guests: int = setting(
        256, "Most requests of other regions at one time; one of their edges may have half. 0: none is accepted."
    )
    mirror_key: str = setting(
        "", "API key of the requests that copy others to the mirrors of routes. Empty: no copies.", secret=True
    )
    max_mirror_copies: int = setting(16, "Most copies for mirrors at one time; further ones are dropped.")
    response_keys: str = setting(
        "",
        "Keys that seal stored responses, `name:base64` of 32 random bytes, separated by commas. The first seals, all "
        "of them open. Every edge must have the same. Empty: responses are not stored.",
        secret=True,
    )
    response_lease: float = setting(
        4.0, "Time after which another edge continues a stored response whose edge is silent.", unit="s"
    )
    tokenizer_threads: int = setting(2, "Tokenizer threads for short prompts, and as many again for long prompts.")

    max_connections: int = setting(4_096, "Most client connections of the gRPC port, and of the HTTP port.")
    max_connections_per_source: int = setting(
        1_024, "Most HTTP connections from one address, proxies included. 0: no limit."
    )
    header_timeout: float = setting(10.0, "Longest time for the headers of an HTTP request to arrive.", unit="s")
    idle_timeout: float = setting(
        75.0,
        "Longest time without a request on an HTTP connection whose last caller had no valid key. 0: no limit.",
        unit="s",
    )
    max_unidentified_bytes: int = setting(
        64 * 2**20, "Bytes of HTTP requests held before their callers are identified.", unit="bytes"
    )
    max_unidentified_calls: int = setting(
        100, "Most gRPC calls of one direct connection that wait for their keys to be checked. 0: no limit."
    )
    max_streams_per_connection: int = setting(
        100, "Most gRPC calls at one time on one connection. A client waits with further calls; Envoy connects again."
    )
    max_failed_calls: int = setting(
        200,
        "gRPC calls from one address within 10 s that end before their caller is identified. Beyond it, connections "
        "from there without a valid key are closed. 0: no limit.",
    )
    max_unfinished_messages: int = setting(
        16, "Most gRPC messages of up to 16 MiB that have been arriving for more than 1 s; one tenant may have half."
    )
    message_timeout: float = setting(60.0, "Longest time for a gRPC message to arrive.", unit="s")

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.http_listen:
            check_address("http_listen", self.http_listen)
        for name in ("auths", "queues"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one address")
        for name in (
            *("max_active_requests", "max_attempts", "tokenizer_threads", "default_output_tokens"),
            *("max_connections", "max_unidentified_bytes", "max_unfinished_messages"),
            "max_streams_per_connection",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 < self.default_timeout <= TIMEOUT_S:
            raise ValueError(f"default_timeout must be above 0 s and at most {TIMEOUT_S:.0f} s, a day")
        for name in (
            *("max_mirror_copies", "max_guests"),
            "auth_fallback_after",
            "auth_fallback_duration",
            "auth_fallback_identity_ttl",
            "auth_fallback_max_identities",
            *("max_connections_per_source", "idle_timeout", "max_unidentified_calls", "max_failed_calls"),
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        parse_doors(self.regions, own=self.region)
        if unknown := set(self.spill_stay) - set(CLASSES):
            raise ValueError(f"spill_stay names {', '.join(sorted(unknown))}; classes are {', '.join(CLASSES)}")
        if not 2.0 <= self.response_lease <= 60.0:
            raise ValueError("response_lease must be 2 to 60 s")
        try:
            parse_keys(self.response_keys)
        except ValueError as error:
            raise ValueError(f"response_keys: {error}") from None
        for name in ("header_timeout", "message_timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0 s")

    @property
    def response_key_bytes(self) -> dict[str, bytes]:
        """Keys that seal stored responses, by name."""
        return parse_keys(self.response_keys)

    @property
    def region_doors(self) -> dict[str, str]:
        """Address of the region door by region, in order of preference."""
        return parse_doors(self.regions, own=self.region)

    @property
    def staying_priorities(self) -> frozenset[int]:
        return frozenset(CLASSES[name] for name in self.spill_stay)

    @property
    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            max_connections=self.max_connections,
            max_connections_per_source=self.max_connections_per_source,
            header_timeout=self.header_timeout,
            idle_timeout=self.idle_timeout,
            max_unidentified_bytes=self.max_unidentified_bytes,
        )

    @property
    def auth_fallback_limits(self) -> AuthFallbackLimits:
        return AuthFallbackLimits(
            outage_after=self.auth_fallback_after,
            max_duration=self.auth_fallback_duration,
            identity_ttl=self.auth_fallback_identity_ttl,
            max_identities=self.auth_fallback_max_identities,
            max_deferred=self.max_active_requests,
        )

    @property
    def lifecycle_limits(self) -> LifecycleLimits:
        return LifecycleLimits(
            max_attempts=self.max_attempts,
            upstream_timeout=self.upstream_timeout,
            cancel_ack_timeout=self.cancel_ack_timeout,
            spills=bool(self.regions),
        )
