"""Rates: limits per minute that may be absent, and their state for callers and for the store."""

from typing import NamedTuple

from penstock.auth.quota.bucket import Bucket

MAX_STORED = 2**63 - 1  # largest integer of the stores


class RateState(NamedTuple):
    """The state of one limit per minute. The tightest of several is the smallest."""

    remaining: int
    limit: int
    reset_millis: int  # until it is full


def new_bucket(per_minute: int, full_at: int) -> Bucket | None:
    return Bucket(per_minute, full_at=full_at) if per_minute else None


def stored_full_at(bucket: Bucket | None) -> int:
    """Return a time that fits into the store. Fallback admissions far beyond a small limit end later than that."""
    return min(bucket.full_at, MAX_STORED) if bucket else 0


def resized_bucket(bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
    if not bucket or not per_minute:
        return new_bucket(per_minute, 0)
    if bucket.per_minute != per_minute:
        bucket.set_limit(per_minute, now)
    return bucket


def rate_state(bucket: Bucket, now: float) -> RateState:
    remaining, reset_millis = bucket.state(now)
    return RateState(remaining, bucket.per_minute, reset_millis)
