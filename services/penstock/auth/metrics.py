"""Metrics of auth: reservations, refusals by limit, and values that are read at each collection."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from prometheus_client import Counter

from penstock.auth import series
from penstock.auth.quota.rejection import LimitsExceeded
from penstock.auth.quota.reservation_table import ReservationTable
from penstock.chassis.errors import PenstockError
from penstock.chassis.observability.metrics import Observation, counter, histogram
from penstock.chassis.observability.series import TENANT, Series
from penstock.chassis.observability.tenant_labels import TenantLabels

MAX_BOUND = 1_024  # label sets whose instruments are kept

# Series of values that the figures of the admin snapshot have.
OBSERVED_FIGURES: Mapping[str, tuple[Series, tuple[str, ...]]] = {
    "reservations": (series.RESERVATIONS, ()),
    "reserved_tokens": (series.RESERVED_TOKENS, ()),
    "failed_authentications": (series.AUTHENTICATION_FAILURES, ("failed",)),
    "limited_authentications": (series.AUTHENTICATION_FAILURES, ("limited",)),
    "proxy_checks_passed": (series.PROXY_CHECKS, ("passed",)),
    "proxy_checks_denied": (series.PROXY_CHECKS, ("denied",)),
    "budget_warnings": (series.BUDGET_WARNINGS, ()),
    "edges": (series.EDGES, ()),
    "partitions": (series.PARTITIONS, ()),
    "store_available": (series.STORE_AVAILABLE, ()),
    "store_pending": (series.STORE_PENDING, ()),
    "store_disk_used": (series.DISK_USED, ()),
    "ledger_rows": (series.LEDGER_ROWS, ()),
    "stored_responses": (series.STORED_RESPONSES, ()),
    "stored_response_bytes": (series.STORED_RESPONSE_BYTES, ()),
    "response_calls_pending": (series.RESPONSE_CALLS_PENDING, ()),
    "response_calls_failed": (series.RESPONSE_CALL_FAILURES, ()),
    "key_sets_stale": (series.KEY_SETS_STALE, ()),
    "key_set_failures": (series.KEY_SET_FAILURES, ()),
    "home_streams": (series.REGION_STREAMS, ("home",)),
    "follower_streams": (series.REGION_STREAMS, ("followers",)),
    "home_unfollowed": (series.HOME_UNFOLLOWED, ()),
    "home_catalog_unknown": (series.HOME_CATALOG_UNKNOWN, ()),
    "shares": (series.SHARES, ()),
    "share_changes": (series.SHARE_CHANGES, ()),
    "excess_claims": (series.EXCESS_CLAIMS, ()),
    "usage_lag": (series.USAGE_LAG, ()),
}

_admitted = counter(series.ADMITTED)
_refused = counter(series.REFUSED)
_limit_refusals = counter(series.LIMIT_REFUSALS)
_reserve_duration = histogram(series.RESERVE_DURATION)
_reservations_expired = counter(series.RESERVATIONS_EXPIRED)
_shadow_refusals = counter(series.SHADOW_REFUSALS)
_partition_changes = counter(series.PARTITION_CHANGES)
_refused_joins = counter(series.REFUSED_JOINS)
_refused_usage = counter(series.REFUSED_USAGE)


@lru_cache(maxsize=MAX_BOUND)
def _admitted_of(tenant: str) -> Counter:
    return _admitted.labels(tenant)


def _remove_tenant(tenant: str) -> None:
    for each in (_admitted, _refused, _limit_refusals):
        each.remove_by_labels({TENANT: tenant})
    _admitted_of.cache_clear()


_tenants = TenantLabels(_remove_tenant)


def record_admitted(tenant_id: str, seconds: float) -> None:
    """Record a new reservation that was on disk after `seconds`."""
    _admitted_of(_tenants.record(tenant_id)).inc()
    _reserve_duration.observe(seconds)


def record_refused(tenant_id: str, error: PenstockError) -> None:
    """Record a refusal. `tenant_id` is empty if the credential is of no tenant."""
    tenant = _tenants.record(tenant_id)
    _refused.labels(tenant, error.reason).inc()
    if isinstance(error, LimitsExceeded):
        for limit in error.limits:
            _limit_refusals.labels(tenant, limit).inc()


def record_shadow_refusals(limits: Iterable[str]) -> None:
    """Count limits that are named by subject and name; only the names become labels."""
    for each in limits:
        _shadow_refusals.labels(each.rpartition(" ")[2]).inc()


def record_expired(reservations: int) -> None:
    _reservations_expired.inc(reservations)


def record_partition_change(change: str, partitions: int) -> None:
    """Record that partitions were taken, given or lost."""
    _partition_changes.labels(change).inc(partitions)


def record_refused_join(reason: str) -> None:
    _refused_joins.labels(reason).inc()


def record_refused_usage(field: str) -> None:
    """Record that the home region has refused a report of usage for a field of a total."""
    _refused_usage.labels(field).inc()


def observations(figures: Mapping[str, float], reservations: ReservationTable, now: float) -> Iterator[Observation]:
    """Yield the values of a process with these `figures`."""
    for name, (each, labels) in OBSERVED_FIGURES.items():
        if name in figures:  # those of key sets and regions are absent without them
            yield Observation(each, figures[name], labels)
    for tenant in _tenants.labelled:
        if quota := reservations.quota(tenant):  # None: the tenant was deleted, or another process owns it
            for limit, share in quota.limit_uses(now):
                yield Observation(series.QUOTA_USED, share, (tenant, limit))
