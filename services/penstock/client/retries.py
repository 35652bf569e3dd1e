"""Retry policy and retry budget: from an error to the delay before the next attempt. No I/O."""

from dataclasses import dataclass

import grpc

from penstock.chassis.errors import PenstockError

CONNECTION_LOST = "CONNECTION_LOST"  # the connection or the server was lost without a response
RETRYABLE_CODES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of one request's retries."""

    max_attempts: int = 5
    max_wait: float = 10.0  # s; a longer `retry_after` of the server is raised as an error instead
    # Seconds after the first failure, doubled for each further one up to the second value.
    backoff: tuple[float, float] = (0.05, 1.0)
    connect_timeout: float = 10.0  # s to connect to any of the targets

    def delay(self, error: PenstockError, attempt: int, jitter: float) -> float | None:
        """Return the seconds before attempt `attempt` + 1. None if the request must not be retried.

        `jitter` is uniform in [0, 1) and spreads clients that failed at the same time. An error of a server without
        `retry_after` is not retried (gRFC A6: a negative pushback).
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
    """Limits the retries of all requests of one client, so that retries cannot sustain an overload (gRFC A6).

    A rejection costs 1 and a success adds `success_credit`. Below half of `capacity` nothing is retried. Lost
    connections cost nothing, because `max_attempts` bounds them and the loss of one edge may affect many answers.
    """

    policy: RetryPolicy
    capacity: float = 10.0
    success_credit: float = 0.1
    level: float = 10.0

    def delay(self, error: PenstockError, attempt: int, jitter: float) -> float | None:
        """Return the delay of the policy, or None if the budget is exhausted. Called once for each error."""
        wait = self.policy.delay(error, attempt, jitter)
        if wait is None or error.reason == CONNECTION_LOST:
            return wait
        self.level = max(0.0, self.level - 1.0)
        return wait if self.level > self.capacity / 2 else None

    def on_success(self) -> None:
        self.level = min(self.capacity, self.level + self.success_credit)
