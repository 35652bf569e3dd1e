"""Where a flight can be, and how long it may be there."""

from dataclasses import dataclass
from enum import StrEnum


class RequestState(StrEnum):
    TOKENIZING = "tokenizing"
    RESERVING = "reserving"
    QUEUED = "queued"
    LEASED = "leased"  # until START is on its way
    RUNNING = "running"
    STOPPING = "stopping"  # CANCEL is on its way; the worker's receipt is awaited
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class LifecycleLimits:
    max_attempts: int = 4  # runs, the first included
    upstream_timeout: float = 30.0  # s without auth, without any queue, or mid-answer without any worker
    retry_interval: float = 0.25  # s between asks for what is missing for a moment
    cancel_ack_timeout: float = 30.0  # s; after it a worker that lives but does not answer a cancel is not waited for
