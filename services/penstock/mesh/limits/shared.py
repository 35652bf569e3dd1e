"""Ranges of the messages that several streams have in common, and of tickets and leases."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Apart, Data, Many, Pairs, Part, Real, Table, Text, Unchecked, Whole

FLAG = Unchecked("both values are legal")
KEY = Unchecked("the receiver looks it up and ignores an unknown one")
HASH = Unchecked("every number names a block or a request; the receiver bounds how many it keeps")
UINT32 = Unchecked("the receiver computes with floats or unbounded integers, and limits what it sends")

ID = Text(bounds.ID_CHARS)
MODEL_NAME = Text(bounds.MODEL_NAME_CHARS)
MODEL_KEY = Text(bounds.MODEL_KEY_CHARS)
DIGEST = Text(bounds.DIGEST_CHARS, "[0-9A-Za-z]*")
ADDRESS = Text(bounds.ADDRESS_CHARS, "[!-~]*")  # host:port or unix:path, without spaces and control characters
TRACEPARENT = Text(bounds.TRACEPARENT_CHARS)
REASON = Text(bounds.REASON_CHARS)
PRIORITY = Whole(3)  # of the enum
TOKENS = Whole(bounds.TOKENS)
TOTAL_TOKENS = Whole(bounds.TOTAL_TOKENS)
ATTEMPT = Whole(bounds.ATTEMPT)
STEPS = Whole(bounds.STEPS)
RATE = Real(bounds.RATE)
WORKERS = Real(bounds.WORKERS)
# The next ones may be slightly below 0, as sums from which the same terms were subtracted again, or by a fit.
TOKEN_SECONDS = Real(bounds.TOKEN_SECONDS, -bounds.TOKEN_SECONDS)
VIRTUAL_TOKENS = Real(bounds.VIRTUAL_TOKENS, -bounds.VIRTUAL_TOKENS)
TICKETS_PER_TOKEN = Real(bounds.RATE, -bounds.RATE)
SHARE = Real(1.0)
REQUEST_NANOS = Whole(bounds.REQUEST_NANOS)

STREAM: Table = {
    "penstock.v1.Hello": {
        "protocol": Unchecked("peers use the lower one of their versions"),
        "instance_id": ID,
        "tier": Text(32, "[a-z]*"),
        "address": ADDRESS,
        "zone": Text(256),
        "bundles": FLAG,
        "min_protocol": Unchecked("peers use the lower one of their versions"),
        "release": Text(256),
        "partitioned": FLAG,
    },
    "penstock.v1.Heartbeat": {},
    "penstock.v1.End": {"reason": REASON},
    "google.protobuf.Duration": {"seconds": Whole(bounds.SPAN_S), "nanos": Whole(999_999_999)},
}

FAILURES: Table = {
    "penstock.v1.Failure": {
        "code": Unchecked("an unknown code becomes INTERNAL"),
        "reason": REASON,
        "message": Text(bounds.ERROR_CHARS),
        "retry_after": Part(),
        "metadata": Pairs(256, bounds.REASON_CHARS),
        "field_violations": Many(1_024, Part()),
        "quota_violations": Many(1_024, Part()),
    },
    "penstock.v1.FieldViolation": {"field": REASON, "description": Text(bounds.ERROR_CHARS)},
    "penstock.v1.QuotaViolation": {"subject": REASON, "description": Text(bounds.ERROR_CHARS)},
}

TICKETS: Table = {
    "penstock.mesh.v1.Ticket": {
        "ticket_id": ID,
        "tenant_id": ID,
        "priority": PRIORITY,
        "weight": Real(bounds.WEIGHT),
        "model": MODEL_KEY,
        "prompt_tokens": TOKENS,
        "max_output_tokens": TOKENS,
        "attempt": ATTEMPT,
        "prefix_hashes": Many(bounds.PREFIX_HASHES, HASH),
        "avoid_workers": Many(bounds.AVOIDED_WORKERS, ID),
        "traceparent": TRACEPARENT,
        "predicted_output_tokens": TOKENS,
        "zone": Text(256),
        "express": FLAG,
        "fingerprint": HASH,
        "may_have_run": FLAG,
        "expected_worker": KEY,
        "time_left_nanos": REQUEST_NANOS,
        "age_nanos": REQUEST_NANOS,
        "readmitted": FLAG,
        "first_token_nanos": REQUEST_NANOS,
        "usable_share": SHARE,
        "away_nanos": REQUEST_NANOS,
    },
    "penstock.mesh.v1.PoisonReport": {"fingerprint": HASH, "is_confirmed": FLAG, "ttl": Part()},
    "penstock.mesh.v1.Lease": {
        "lease_id": ID,
        "ticket_id": ID,
        "worker_id": ID,
        "worker_address": ADDRESS,
        "ttl": Part(),
        "attempt": ATTEMPT,
        "queue_wait": Part(),
        "placement_time": Part(),
        "queue_id": ID,
        "express": FLAG,
        "model": MODEL_KEY,
        "priority": PRIORITY,
    },
    "penstock.mesh.v1.CatalogEntry": {
        "model": MODEL_NAME,
        "card_digest": DIGEST,
        "worker_address": ADDRESS,
        "workers_hint": UINT32,
        "slots_hint": UINT32,
        "context_length": TOKENS,
        "worker_id": ID,
    },
}

PER_TICKET = Apart(bounds.TICKETS, "the queue sheds a wrong ticket alone, as another attempt would be as wrong")
SALT = Data(64)
