"""Limit headers: what a caller learns of its limits, as HTTP headers and gRPC metadata in the format of OpenAI."""

from typing import TypeAlias

from penstock.mesh.v1.admission_pb2 import Admitted, RateLimits, Rejected

BUDGET_WARNING = "x-penstock-budget-warning"

Headers: TypeAlias = tuple[tuple[str, str], ...]


def limit_headers(answer: Admitted | Rejected) -> Headers:
    """Return the headers for an answer of auth; empty if its caller has neither limits per minute nor a warning."""
    found = _rate_headers(answer.rate_limits) if answer.HasField("rate_limits") else ()
    if isinstance(answer, Admitted) and answer.budget_warning:
        return (*found, (BUDGET_WARNING, answer.budget_warning))
    return found


def duration_text(millis: int) -> str:
    """Return a duration such as 120ms, 1.5s or 6m0s."""
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    seconds = f"{rest / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _rate_headers(limits: RateLimits) -> Headers:
    found: list[tuple[str, str]] = []
    for name, limit, remaining, reset in (
        ("requests", limits.limit_requests, limits.remaining_requests, limits.reset_requests_millis),
        ("tokens", limits.limit_tokens, limits.remaining_tokens, limits.reset_tokens_millis),
    ):
        if limit:
            found += [
                (f"x-ratelimit-limit-{name}", str(limit)),
                (f"x-ratelimit-remaining-{name}", str(remaining)),
                (f"x-ratelimit-reset-{name}", duration_text(reset)),
            ]
    return tuple(found)
