"""Series of auth, which owns reservations, their refusals by limit, and the state of its store."""

from penstock.chassis.observability.series import REASON, TENANT, counter, gauge, histogram

RESERVE_BUCKETS = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LIMIT = "limit"  # name, such as tokens or budget_month_money

ADMITTED = counter("penstock.auth.admitted", "{request}", "Requests whose tokens were reserved.", TENANT)
REFUSED = counter("penstock.auth.refused", "{request}", "Requests that auth refused.", TENANT, REASON)
LIMIT_REFUSALS = counter(
    "penstock.auth.limit_refusals",
    "{limit}",
    "Limits and budgets that refused requests have exceeded. A request may exceed several.",
    TENANT,
    LIMIT,
)
RESERVE_DURATION = histogram(
    "penstock.auth.reserve",
    "From the arrival of a request at auth until its reservation was on disk.",
    buckets=RESERVE_BUCKETS,
)
QUOTA_USED = gauge(
    "penstock.auth.quota_used",
    "1",
    "Used share of a limit or budget of a tenant itself, of the busiest tenants.",
    TENANT,
    LIMIT,
)
RESERVATIONS = gauge("penstock.auth.reservations", "{reservation}", "Reservations that are not settled.")
RESERVED_TOKENS = gauge("penstock.auth.reserved_tokens", "{token}", "Tokens of these reservations.")
RESERVATIONS_EXPIRED = counter(
    "penstock.auth.reservations_expired",
    "{reservation}",
    "Reservations that auth charged itself, as no edge settled them in time.",
)
AUTHENTICATION_FAILURES = counter(
    "penstock.auth.authentication_failures",
    "{credential}",
    "Credentials that were refused: failed (looked at) or limited (not looked at, after too many failures).",
    "kind",
)
PROXY_CHECKS = counter("penstock.auth.proxy_checks", "{call}", "Calls that proxies asked about.", "outcome")
BUDGET_WARNINGS = counter(
    "penstock.auth.budget_warnings", "{request}", "Requests admitted beyond the soft share of a budget."
)
SHADOW_REFUSALS = counter(
    "penstock.auth.shadow_refusals", "{limit}", "Limits in shadow mode that admitted requests have exceeded.", LIMIT
)
EDGES = gauge("penstock.auth.edges", "{edge}", "Edges with a session.")
PARTITIONS = gauge("penstock.auth.partitions", "{partition}", "Partitions of tenants that this process owns.")
PARTITION_CHANGES = counter(
    "penstock.auth.partition_changes",
    "{partition}",
    "Partitions taken from a process that ended or gave them, given to another one, or lost to another one.",
    "change",
)
STORE_AVAILABLE = gauge("penstock.auth.store_available", "{flag}", "1 while the latest commit to the store succeeded.")
STORE_PENDING = gauge("penstock.auth.store_pending", "{change}", "Changes that are not committed.")
LEDGER_ROWS = gauge(
    "penstock.auth.ledger_rows",
    "{row}",
    "Rows of the ledger that are not rolled up. Replicas of one store export the same number, as of the next two.",
)
STORED_RESPONSES = gauge("penstock.auth.stored_responses", "{response}", "Stored responses of all tenants.")
STORED_RESPONSE_BYTES = gauge("penstock.auth.stored_response", "By", "Their bytes, as counted for tenants.")
RESPONSE_CALLS_PENDING = gauge(
    "penstock.auth.response_calls_pending", "{call}", "Calls of edges on stored responses without a result yet."
)
RESPONSE_CALL_FAILURES = counter(
    "penstock.auth.response_call_failures",
    "{call}",
    "Calls of edges on stored responses that failed because the store was unavailable.",
)
DISK_USED = gauge("penstock.auth.disk_used", "1", "Used share of the volume of the store.")
KEY_SETS_STALE = gauge("penstock.auth.key_sets_stale", "{issuer}", "Issuers whose tokens are refused for old keys.")
KEY_SET_FAILURES = counter("penstock.auth.key_set_failures", "{load}", "Loads of issuers' key sets that failed.")
REGION_STREAMS = gauge(
    "penstock.auth.region_streams",
    "{stream}",
    "Streams to the home region (home), or from processes of regions that follow this one (followers).",
    "side",
)
REFUSED_JOINS = counter(
    "penstock.auth.refused_joins", "{stream}", "Streams of other regions that the home region refused.", REASON
)
HOME_UNFOLLOWED = gauge(
    "penstock.auth.home_unfollowed",
    "s",
    "Time since this process has last followed its home region; 0 while it does, and without partitions.",
)
HOME_CATALOG_UNKNOWN = gauge(
    "penstock.auth.home_catalog_unknown",
    "{entry}",
    "Tenants and keys that the home region lacks, and that keep this region from following it.",
)
SHARES = gauge(
    "penstock.auth.shares", "{scope}", "Limits of tenants, keys and models of which this region has a share."
)
SHARE_CHANGES = counter(
    "penstock.auth.share_changes", "{change}", "Changes of shares that the home region sent, or a region applied."
)
EXCESS_CLAIMS = counter(
    "penstock.auth.excess_claims",
    "{share}",
    "Shares above what was granted that a region claimed at the beginning of an exchange: a store was restored.",
)
REFUSED_USAGE = counter(
    "penstock.auth.refused_usage",
    "{report}",
    "Reports of usage of other regions that the home region refused, by the field that was out of its range.",
    "field",
)
USAGE_LAG = gauge(
    "penstock.auth.usage_lag",
    "s",
    "Time since the oldest usage of this region that its home region has not confirmed; 0 if all is confirmed.",
)

SERIES = (
    ADMITTED,
    REFUSED,
    LIMIT_REFUSALS,
    RESERVE_DURATION,
    QUOTA_USED,
    RESERVATIONS,
    RESERVED_TOKENS,
    RESERVATIONS_EXPIRED,
    AUTHENTICATION_FAILURES,
    PROXY_CHECKS,
    BUDGET_WARNINGS,
    SHADOW_REFUSALS,
    EDGES,
    PARTITIONS,
    PARTITION_CHANGES,
    STORE_AVAILABLE,
    STORE_PENDING,
    LEDGER_ROWS,
    STORED_RESPONSES,
    STORED_RESPONSE_BYTES,
    RESPONSE_CALLS_PENDING,
    RESPONSE_CALL_FAILURES,
    DISK_USED,
    KEY_SETS_STALE,
    KEY_SET_FAILURES,
    *(REGION_STREAMS, REFUSED_JOINS, HOME_UNFOLLOWED, HOME_CATALOG_UNKNOWN, SHARES, SHARE_CHANGES),
    *(EXCESS_CLAIMS, REFUSED_USAGE, USAGE_LAG),
)
