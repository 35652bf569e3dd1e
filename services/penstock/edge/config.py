"""What an edge can be told."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig, check_address
from penstock.edge.auth_fallback.pending import AuthFallbackLimits
from penstock.edge.lifecycle.state import LifecycleLimits
from penstock.edge.request.limits import TIMEOUT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeConfig(ServiceConfig):
    """Settings of `PENSTOCK_EDGE_*`."""

    listen: str = "127.0.0.1:7001"
    http_listen: str = ""  # host:port of the OpenAI API; empty: none
    auths: tuple[str, ...] = ("127.0.0.1:7002",)  # host:port or dns:///name:port
    queues: tuple[str, ...] = ("127.0.0.1:7003",)  # all shards, the same list at every edge
    max_active_requests: int = 20_000  # requests under way
    max_held_bytes: int = 512 * 2**20  # of prompts and their ids
    response_buffer_bytes: int = (
        64 * 2**10
    )  # bytes of an answer its client may be behind; further behind, it loses the request
    default_timeout: float = 600.0  # s, for requests without a deadline; at most the contract's day
    default_output_tokens: int = 1_024  # for requests that name no bound
    max_attempts: int = 4  # runs of one request, the first included
    upstream_timeout: float = 30.0  # s without auth, without any queue, or mid-answer without any worker
    cancel_ack_timeout: float = 30.0  # s for a worker to answer a cancel
    identify_timeout: float = 5.0  # s for auth to say who somebody is
    auth_fallback_after: float = 1.0  # s of auth's silence; from then on the edge lets in whom auth let in of late
    auth_fallback_duration: float = (
        60.0  # s of an outage in which it does so, also for a key revoked meanwhile; 0: never
    )
    auth_fallback_identity_ttl: float = 600.0  # s for which a caller is remembered
    auth_fallback_max_identities: int = 10_000  # remembered at most
    startup_timeout: float = 5.0  # s for auth, a queue and the models' cards; then it listens all the same
    model_wait_timeout: float = 5.0  # s for a model that was announced to become usable
    worker_idle_timeout: float = 60.0  # s; then the stream to a worker that runs nothing for us is closed
    tokenizer_threads: int = 2  # for short prompts, and as many for long ones

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.http_listen:
            check_address("http_listen", self.http_listen)
        for name in ("auths", "queues"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one address")
        for name in ("max_active_requests", "max_attempts", "tokenizer_threads", "default_output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 < self.default_timeout <= TIMEOUT_S:
            raise ValueError(f"default_timeout must be above 0 s and at most {TIMEOUT_S:.0f} s, a day")
        for name in (
            "auth_fallback_after",
            "auth_fallback_duration",
            "auth_fallback_identity_ttl",
            "auth_fallback_max_identities",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

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
        )
