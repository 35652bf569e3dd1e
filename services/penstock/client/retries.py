"""When to ask again. Pure: what went wrong comes in, how long to wait goes out."""

from dataclasses import dataclass

import grpc

from penstock.chassis.errors import PenstockError

CONNECTION_LOST = "CONNECTION_LOST"  # no server has said anything: the connection, or the server, is gone
RETRYABLE_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of one request's retries."""

    max_attempts: int = 5
    max_wait: float = 10.0  # s; whoever is told to come back later than that is told so instead
    backoff: tuple[float, float] = (0.05, 1.0)  # s; after the first loss, doubling up to
    connect_timeout: float = 10.0  # s; for a connection to any of the targets

    def delay(self, error: PenstockError, attempt: int, jitter: float) -> float | None:
        """Seconds before attempt `attempt` + 1; None when there is to be none.

        draw: uniform in [0, 1); spreads clients that failed at the same moment.
        A server that names no time says by that that a retry cannot help (gRFC A6: a negative pushback).
        """
        if attempt >= self.max_attempts:
            return None
        first, longest = self.backoff
        spread = jitter * min(first * 2.0 ** (attempt - 1), longest)
        if error.reason == CONNECTION_LOST:
            return spread
        if error.code not in RETRYABLE_CODES or error.retry_after is None or error.retry_after > self.max_wait:
            return None
        return error.retry_after + spread


@dataclass(slots=True)
class RetryBudget:
    """Retries of all requests of one client, so that many clients cannot keep an overload alive (gRFC A6).

    A refusal costs 1 and a success brings `gain`; below half there are no retries. Lost connections cost nothing:
    they are bounded by attempts, and an edge that died under a hundred answers must not cost one of them.
    """

    policy: RetryPolicy
    capacity: float = 10.0
    success_credit: float = 0.1
    level: float = 10.0

    def delay(self, error: PenstockError, attempt: int, jitter: float) -> float | None:
        """As the policy says, unless the budget is spent; to be asked once for each error."""
        wait = self.policy.delay(error, attempt, jitter)
        if wait is None or error.reason == CONNECTION_LOST:
            return wait
        self.level = max(0.0, self.level - 1.0)
        return wait if self.level > self.capacity / 2 else None

    def on_success(self) -> None:
        self.level = min(self.capacity, self.level + self.success_credit)
