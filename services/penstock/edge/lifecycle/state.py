"""States of a request, and the limits of its life."""

from dataclasses import dataclass
from enum import StrEnum

import grpc

STALL_THRESHOLD_S = 1.0  # a timer that fires later than this shows that the process stalled
# Codes of a rejected run that another lease may cure.
RETRYABLE_CODES = (grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE)


class RequestState(StrEnum):
    TOKENIZING = "tokenizing"
    RESERVING = "reserving"
    QUEUED = "queued"
    LEASED = "leased"  # until the start frame is sent
    RUNNING = "running"
    STOPPING = "stopping"  # the cancel frame is sent and not acknowledged yet
    DONE = "done"


@dataclass(frozen=True, kw_only=True, slots=True)
class LifecycleLimits:
    max_attempts: int = 4  # runs of one request, including the first
    upstream_timeout: float = 30.0  # s without auth, without any queue shard, or mid-answer without any worker
    retry_interval: float = 0.25  # s between retries of a transient failure
    cancel_ack_timeout: float = 30.0  # s for a connected worker to acknowledge a cancel
