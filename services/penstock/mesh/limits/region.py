"""Ranges of the streams between edges of two regions, and of those of routing to edges."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Part, Real, Table, Text, Unchecked
from penstock.mesh.limits.shared import (
    FLAG,
    ID,
    KEY,
    MODEL_KEY,
    PRIORITY,
    REQUEST_NANOS,
    SALT,
    TRACEPARENT,
)

PER_GUEST = Unchecked("the edge rejects a wrong request alone, with GUEST_INVALID")

REGION: Table = {
    "penstock.mesh.v1.GuestOffer": {
        "handle": KEY,
        "request_id": ID,
        "model": MODEL_KEY,
        "token_ids": PER_GUEST,
        "emitted": PER_GUEST,
        "max_output_tokens": PER_GUEST,
        "sampling": PER_GUEST,
        "ignore_eos": FLAG,
        "form": Part(),
        "tenant_id": ID,
        "priority": PRIORITY,
        "weight": Real(bounds.WEIGHT),
        "cache_salt": SALT,
        "time_left_nanos": REQUEST_NANOS,
        "away_nanos": REQUEST_NANOS,
        "traceparent": TRACEPARENT,
        "may_have_run": FLAG,
    },
    "penstock.mesh.v1.GuestRejected": {"handle": KEY, "failure": Part()},
    "penstock.mesh.v1.GuestStarted": {"handle": KEY},
    "penstock.mesh.v1.RegionState": {"region": Text(bounds.REGION_CHARS, "[0-9a-z-]*"), "drained": FLAG},
}
