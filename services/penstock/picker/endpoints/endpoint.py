"""One endpoint: whether it is ready, and how many requests it may have."""

from dataclasses import dataclass, field
from enum import StrEnum

from penstock.mesh.v1.scheduler_pb2 import Profile
from penstock.picker.endpoints.load import EndpointLoad
from penstock.scheduler.fleet.worker import Worker

HASH_BLOCK_TOKENS = 16  # tokens of a block by which prefixes are compared
UNKNOWN_KV_BLOCKS = 1 << 22  # of a server that does not state its KV blocks: they never limit it
CONTEXT_TOKENS = (1 << 31) - 1  # a server rejects longer prompts itself
UNKNOWN_LOAD_SHARE = 0.5  # of the slots of an endpoint whose load is not known


class EndpointState(StrEnum):
    PENDING = "pending"  # not scraped yet
    READY = "ready"
    DEGRADED = "degraded"  # it answers, or answered recently; its load is unknown or too old
    DOWN = "down"  # it accepts no connection, or has not answered for `down_after`


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """Settings of all endpoints."""

    slots: int = 64  # requests that an endpoint may have
    max_waiting: int = 4  # in the queue of a server; beyond it, the server gets no further request
    max_kv_usage: float = 0.95  # share of its KV blocks in use, likewise
    stale_after: float = 2.0  # s without a scrape, after which a load is not known
    down_after: float = 5.0  # s without an answer, after which the endpoint is down
    prefill_rate: float = 8_000.0  # prompt tokens/s, by which cached prefixes are compared with load
    decode_step: float = 0.02  # s of a step of the engine


@dataclass(slots=True, eq=False)
class Endpoint:
    """The state of one server. Its worker is in the pool while it is ready or degraded."""

    address: str
    limits: EndpointLimits
    worker: Worker = field(init=False)
    state: EndpointState = EndpointState.PENDING
    load: EndpointLoad | None = None
    loaded_at: float = 0.0  # s
    answered_at: float = 0.0  # s; before its first answer, the time at which it was listed
    has_answered: bool = False
    is_refusing: bool = False  # it accepted no connection at the latest scrape
    held_at_load: int = 0  # slots that requests of this picker held at the latest scrape

    def __post_init__(self) -> None:
        self.worker = Worker(self.address, self.address, self.address, self._profile(self.limits.slots), look_ahead=0)

    @property
    def held(self) -> int:
        """Slots that requests of this picker hold."""
        return len(self.worker.promised)

    @property
    def is_usable(self) -> bool:
        return self.state in {EndpointState.READY, EndpointState.DEGRADED}

    def on_answer(self, now: float) -> None:
        self.answered_at, self.has_answered, self.is_refusing = now, True, False

    def state_at(self, now: float) -> EndpointState:
        if self.is_refusing or now - self.answered_at > self.limits.down_after:
            return EndpointState.DOWN
        if not self.has_answered:
            return EndpointState.PENDING
        is_fresh = self.load is not None and now - self.loaded_at <= self.limits.stale_after
        return EndpointState.READY if is_fresh else EndpointState.DEGRADED

    def usable_slots(self) -> int:
        """Return the requests of this picker that the endpoint may have now.

        Requests of others take slots. A server that queues requests itself, or is short of KV blocks, gets none beyond
        those that it had: their order is then decided here. Without a load, it has a share of its slots.
        """
        slots = self.limits.slots
        if self.load is None or self.state is EndpointState.DEGRADED:
            return max(1, int(slots * UNKNOWN_LOAD_SHARE))
        others = max(0, self.load.requests - self.held_at_load)
        if self.load.waiting > self.limits.max_waiting or self.load.kv_usage > self.limits.max_kv_usage:
            return min(self.held_at_load, max(0, slots - others))
        return max(0, slots - others)

    def profile(self) -> Profile:
        return self._profile(self.usable_slots())

    def _profile(self, slots: int) -> Profile:
        kv_tokens = self.load.kv_tokens if self.load else 0
        return Profile(
            slots=slots,
            kv_blocks=min(UNKNOWN_KV_BLOCKS, kv_tokens // HASH_BLOCK_TOKENS) or UNKNOWN_KV_BLOCKS,
            block_size=HASH_BLOCK_TOKENS,
            context_length=CONTEXT_TOKENS,
        )
