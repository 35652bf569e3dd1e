"""Ranges of the streams between auth of two regions."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.admission import PARTITION
from penstock.mesh.limits.rules import Data, Many, Part, Real, Rule, Table, Text, Unchecked, Whole
from penstock.mesh.limits.shared import FLAG, ID, MODEL_NAME, PRIORITY, SHARE

TENANT = Text(63, "[a-z0-9-]*")
REGION = Text(bounds.REGION_CHARS, "[a-z0-9-]*")
SCOPE = Text(bounds.SCOPE_CHARS)
THOUSANDTHS = Whole(1_000)
NUMBER = Unchecked("the receiver only compares it")
AMOUNT = Whole(bounds.AMOUNT)
RATE_LIMIT = Unchecked("a limit of all that the type holds is a limit")
ROUTE_JSON = Text(bounds.ROUTE_CHARS)
ENTRIES = Many(bounds.CATALOG_ENTRIES, Part())

_RATE_LIMITS: dict[str, Rule] = {
    "requests_per_minute": RATE_LIMIT,
    "input_tokens_per_minute": AMOUNT,
    "output_tokens_per_minute": AMOUNT,
    "tokens_per_minute": AMOUNT,
    "concurrent_requests": RATE_LIMIT,
}
_MODELS = Many(64, MODEL_NAME)
_BUDGETS = Many(4, Part())

SHARES: Table = {
    "penstock.mesh.v1.RegionJoin": {"region": REGION, "secrets_digest": Data(16)},
    "penstock.mesh.v1.Share": {
        "tenant_id": TENANT,
        "scope": SCOPE,
        "rates": THOUSANDTHS,
        "budgets": THOUSANDTHS,
        "number": NUMBER,
    },
    "penstock.mesh.v1.ShareRules": {"largest": THOUSANDTHS},
    "penstock.mesh.v1.SharesBegin": {
        "partition": PARTITION,
        "epoch": Whole(bounds.EPOCH),
        "shares": Many(bounds.SHARES, Part()),
    },
    "penstock.mesh.v1.ShareHeld": {"share": Part()},
    "penstock.mesh.v1.ShareDemand": {
        "tenant_id": TENANT,
        "scope": SCOPE,
        "used_rates": THOUSANDTHS,
        "wanted_rates": THOUSANDTHS,
        "used_budgets": THOUSANDTHS,
        "wanted_budgets": THOUSANDTHS,
    },
}

CATALOG: Table = {
    "penstock.mesh.v1.AuthCatalogPart": {"is_first": FLAG, "is_last": FLAG, "entries": ENTRIES, "deleted": ENTRIES},
    "penstock.mesh.v1.AuthCatalogEntry": {"tenant": Part(), "key": Part(), "price": Part(), "route": Part()},
    "penstock.mesh.v1.CatalogKey": {"key": Part(), "digest": Data(32)},
    "penstock.mesh.v1.CatalogRoute": {
        "name": MODEL_NAME,
        "tenant_id": TENANT,
        "revision": Whole(bounds.AMOUNT),
        "definition": ROUTE_JSON,
        "former": ROUTE_JSON,
    },
    "penstock.v1.Tenant": {
        "tenant_id": TENANT,
        "priority": PRIORITY,
        "weight": Real(bounds.WEIGHT),
        "requests_per_minute": RATE_LIMIT,
        "tokens_per_minute": AMOUNT,
        "concurrent_requests": RATE_LIMIT,
        "input_tokens_per_minute": AMOUNT,
        "output_tokens_per_minute": AMOUNT,
        "allowed_models": _MODELS,
        "model_limits": Many(64, Part()),
        "budgets": _BUDGETS,
        "soft_share": SHARE,
        "shadow": FLAG,
        "allowed_regions": Many(bounds.ALLOWED_REGIONS, REGION),
    },
    "penstock.v1.Key": {
        "key_id": ID,
        "tenant_id": TENANT,
        "display_name": ID,
        "create_time": Part(),
        "expire_time": Part(),
        "revoke_time": Part(),
        "loopback_only": FLAG,
        "limits": Part(),
    },
    "penstock.v1.KeyLimits": {
        "limits": Part(),
        "allowed_models": _MODELS,
        "budgets": _BUDGETS,
        "soft_share": SHARE,
        "shadow": FLAG,
    },
    "penstock.v1.Limits": _RATE_LIMITS,
    "penstock.v1.ModelLimits": {"model": MODEL_NAME, "limits": Part()},
    "penstock.v1.Budget": {"period": Whole(2), "tokens": AMOUNT, "money_nanos": AMOUNT},
    "penstock.v1.Price": {
        "model": MODEL_NAME,
        "input_nanos": AMOUNT,
        "cached_input_nanos": AMOUNT,
        "output_nanos": AMOUNT,
    },
    "google.protobuf.Timestamp": {"seconds": Whole(bounds.UNIX_S), "nanos": Whole(999_999_999)},
}

USAGE: Table = {
    "penstock.mesh.v1.UsageReport": {"number": NUMBER, "totals": Many(bounds.USAGE_TOTALS, Part())},
    "penstock.mesh.v1.HourlyTotal": {
        "hour": Whole(bounds.UNIX_S),
        "tenant_id": TENANT,
        "key_id": ID,
        "model": MODEL_NAME,
        **dict.fromkeys(
            (
                *("requests", "prompt_tokens", "cached_tokens", "output_tokens", "price_nanos"),
                *("completed", "cancelled", "shed", "failed", "lost"),
            ),
            AMOUNT,
        ),
        "revision": AMOUNT,
    },
    "penstock.mesh.v1.UsageConfirmed": {"number": NUMBER},
    "penstock.mesh.v1.UsageRefused": {"number": NUMBER, "field": Text(63, "[a-z_]*")},
}

REGION_QUOTA: Table = {**SHARES, **CATALOG, **USAGE}
