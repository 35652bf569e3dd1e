"""What an edge can be told."""

from dataclasses import dataclass

from penstock.chassis.config import ServiceConfig, check_address
from penstock.edge.flight.state import FlightLimits
from penstock.edge.grace.limits import GraceLimits
from penstock.edge.request.limits import TIMEOUT_S


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeConfig(ServiceConfig):
    """Settings of `PENSTOCK_EDGE_*`."""

    listen: str = "127.0.0.1:7001"
    http_listen: str = ""  # host:port of the OpenAI API; empty: none
    auths: tuple[str, ...] = ("127.0.0.1:7002",)  # host:port or dns:///name:port
    queues: tuple[str, ...] = ("127.0.0.1:7003",)  # all shards, the same list at every edge
    max_flights: int = 20_000  # requests under way
    max_bytes: int = 512 * 2**20  # of prompts and their ids
    client_buffer: int = 64 * 2**10  # bytes of an answer its client may be behind; further behind, it loses the request
    default_timeout: float = 600.0  # s, for requests without a deadline; at most the contract's day
    default_output_tokens: int = 1_024  # for requests that name no bound
    max_attempts: int = 4  # runs of one request, the first included
    patience: float = 30.0  # s without auth, without any queue, or mid-answer without any worker
    receipt_timeout: float = 30.0  # s for a worker to answer a cancel
    identify_patience: float = 5.0  # s for auth to say who somebody is
    grace_after: float = 1.0  # s of auth's silence; from then on the edge lets in whom auth let in of late
    grace_for: float = 60.0  # s of an outage in which it does so, also for a key revoked meanwhile; 0: never
    grace_memory: float = 600.0  # s for which a caller is remembered
    grace_callers: int = 10_000  # remembered at most
    arrival_patience: float = 5.0  # s for auth, a queue and the models' cards; then it listens all the same
    model_patience: float = 5.0  # s for a model that was announced to become usable
    worker_idle: float = 60.0  # s; then the stream to a worker that runs nothing for us is closed
    tokenizer_threads: int = 2  # for short prompts, and as many for long ones

    def __post_init__(self) -> None:
        ServiceConfig.__post_init__(self)
        if self.http_listen:
            check_address("http_listen", self.http_listen)
        for name in ("auths", "queues"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one address")
        for name in ("max_flights", "max_attempts", "tokenizer_threads", "default_output_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 < self.default_timeout <= TIMEOUT_S:
            raise ValueError(f"default_timeout must be above 0 s and at most {TIMEOUT_S:.0f} s, a day")
        for name in ("grace_after", "grace_for", "grace_memory", "grace_callers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")

    @property
    def grace_limits(self) -> GraceLimits:
        return GraceLimits(
            after=self.grace_after,
            lasts=self.grace_for,
            memory=self.grace_memory,
            callers=self.grace_callers,
            unbooked=self.max_flights,
        )

    @property
    def flight_limits(self) -> FlightLimits:
        return FlightLimits(
            max_attempts=self.max_attempts, patience=self.patience, receipt_timeout=self.receipt_timeout
        )
