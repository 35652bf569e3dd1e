"""Ranges of the stream between edges and auth."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Data, Many, Part, Real, Table, Text, Unchecked, Whole
from penstock.mesh.limits.shared import FLAG, ID, MODEL_NAME, PRIORITY, REQUEST_NANOS, SALT, SHARE, TOKENS, TRACEPARENT
from penstock.mesh.partitions import PARTITIONS

GRANT = Data(64)
DELEGATION = Data(bounds.DELEGATION_BYTES)
PARTITION = Whole(PARTITIONS - 1)

ADMISSION: Table = {
    "penstock.mesh.v1.Credential": {
        "bearer": Text(bounds.BEARER_CHARS),
        "loopback": FLAG,
        "source": Text(bounds.SOURCE_CHARS),
        "delegation": DELEGATION,
    },
    "penstock.mesh.v1.Identify": {"request_id": ID, "credential": Part(), "delegates": FLAG},
    "penstock.mesh.v1.Reserve": {
        "request_id": ID,
        "credential": Part(),
        "model": MODEL_NAME,
        "prompt_tokens": TOKENS,
        "max_output_tokens": TOKENS,
        "priority": PRIORITY,
        "traceparent": TRACEPARENT,
        "answer_id": ID,
        "emitted_tokens": TOKENS,
        "answer_fingerprint": Data(64),
        "fallback_admission": Part(),
    },
    "penstock.mesh.v1.FallbackAdmission": {
        "key_id": ID,
        "grant": GRANT,
        "age_nanos": REQUEST_NANOS,
        "used_tokens": Whole(2 * bounds.TOKENS),
    },
    "penstock.mesh.v1.Settle": {
        "reservation_id": ID,
        "prompt_tokens": TOKENS,
        "output_tokens": TOKENS,
        "outcome": Text(64),
        "partition": PARTITION,
        "cached_tokens": TOKENS,
        "worker": ID,
    },
    "penstock.mesh.v1.Identity": {
        "tenant_id": ID,
        "priority": PRIORITY,
        "weight": Real(bounds.WEIGHT),
        "cache_salt": SALT,
        "key_id": ID,
        "allowed_regions": Many(bounds.ALLOWED_REGIONS, Text(bounds.REGION_CHARS, "[a-z0-9-]*")),
    },
    "penstock.mesh.v1.Residency": {"digest": Data(64)},
    "penstock.mesh.v1.Identified": {"request_id": ID, "identity": Part(), "delegation": DELEGATION},
    "penstock.mesh.v1.Admitted": {
        "request_id": ID,
        "reservation_id": ID,
        "identity": Part(),
        "fallback_tokens": Unchecked("a grant of all tokens that the type holds is a grant"),
        "fallback_grant": GRANT,
        "fallback_grant_time_left_nanos": REQUEST_NANOS,
        "rate_limits": Part(),
        "budget_warning": Text(bounds.BUDGET_WARNING_CHARS),
    },
    "penstock.mesh.v1.RateLimits": {
        name: Unchecked("is passed on to the caller as text")
        for name in (
            *("limit_requests", "remaining_requests", "reset_requests_millis"),
            *("limit_tokens", "remaining_tokens", "reset_tokens_millis"),
        )
    },
    "penstock.mesh.v1.Rejected": {
        "request_id": ID,
        "failure": Part(),
        "tenant_id": ID,
        "key_id": ID,
        "rate_limits": Part(),
    },
    "penstock.mesh.v1.StoreState": {"is_unavailable": FLAG},
    "penstock.mesh.v1.Settled": {"reservation_id": ID},
    "penstock.mesh.v1.OwnedPartitions": {
        "partitions": Many(PARTITIONS, PARTITION),
        "epochs": Many(PARTITIONS, Whole(bounds.EPOCH)),
    },
    "penstock.mesh.v1.NotOwner": {"request_id": ID, "reservation_id": ID, "identity": Part()},
    "penstock.mesh.v1.Routes": {"routes": Many(bounds.ROUTES, Part())},
    "penstock.v1.Route": {
        "name": MODEL_NAME,
        "tenant_id": ID,
        "definition": Part(),
        "revision": Unchecked("is shown to operators, and only compared"),
        "former": Part(),
    },
    "penstock.v1.RouteDefinition": {
        "targets": Many(bounds.ROUTE_TARGETS, Part()),
        "affinity": Unchecked("an affinity that only a later release knows is none"),
        "fallbacks": Many(bounds.ROUTE_FALLBACKS, MODEL_NAME),
        "mirror": MODEL_NAME,
        "mirror_share": SHARE,
        "hold": Part(),
    },
    "penstock.v1.RouteHold": {
        "seconds": Whole(bounds.HOLD_SECONDS),
        "requests": Whole(bounds.HELD_REQUESTS),
        "load_seconds": Whole(bounds.HOLD_SECONDS),
    },
    "penstock.v1.RouteTarget": {"model": MODEL_NAME, "weight": Whole(bounds.ROUTE_WEIGHT)},
    "penstock.mesh.v1.IdentityKeys": {
        "keys": Many(bounds.IDENTITY_KEYS, Part()),
        "clock_nanos": Whole(bounds.CLOCK_NANOS),
    },
    "penstock.mesh.v1.IdentityKey": {
        "number": Unchecked("names the key, and is only compared"),
        "secret": Data(64),
        "time_left_nanos": REQUEST_NANOS,
    },
}
