"""Ranges of the stream between workers and their scheduler."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Many, Part, Table, Text, Unchecked, Whole
from penstock.mesh.limits.shared import (
    ATTEMPT,
    FLAG,
    HASH,
    ID,
    KEY,
    MODEL_NAME,
    RATE,
    STEPS,
    TOKEN_SECONDS,
    TOKENS,
    UINT32,
)

LIMITED = Unchecked("the scheduler limits it to the tokens of one sequence, as a frame may have very many leases")
POISON_REPORTS = Many(bounds.POISON_REPORTS, Part())

SCHEDULER: Table = {
    "penstock.mesh.v1.Profile": {
        "model": MODEL_NAME,
        "card_digest": Text(bounds.DIGEST_CHARS),
        "slots": Whole(bounds.SLOTS),
        "kv_blocks": Whole(bounds.KV_BLOCKS),
        "block_size": Whole(bounds.BLOCK_SIZE),
        "context_length": TOKENS,
        "running": Many(bounds.LEASES, Part()),
        "poison_reports": POISON_REPORTS,
    },
    "penstock.mesh.v1.RunningLease": {
        "lease_id": ID,
        "kv_blocks": Whole(bounds.KV_BLOCKS),
        "ticket_id": ID,
        "attempt": ATTEMPT,
        "queue_id": ID,
    },
    "penstock.mesh.v1.LoadReport": {
        "running": UINT32,
        "free_kv_blocks": UINT32,
        "prefill_backlog_tokens": UINT32,
        "step_time": Part(),
        "tokens_per_second": RATE,
        "prefill_tokens_per_second": RATE,
        "steps": STEPS,
        "decode_step_time": Part(),
        "seconds_per_prefill_token": TOKEN_SECONDS,
        "max_step_tokens": UINT32,
    },
    "penstock.mesh.v1.Started": {"lease_id": KEY},
    "penstock.mesh.v1.Progress": {
        "leases": Many(bounds.LEASES, Part()),
        "lease_numbers": Many(bounds.LEASES, KEY),
        "output_tokens": Many(bounds.LEASES, TOKENS),
        "steps": STEPS,
    },
    "penstock.mesh.v1.ServedLease": {
        "lease_id": KEY,
        "prompt_tokens": LIMITED,
        "output_tokens": LIMITED,
        "first_token_after": Unchecked("the scheduler limits it to a day"),
        "number": Unchecked("a lease has one number at a time"),
    },
    "penstock.mesh.v1.PrefixCacheUpdate": {
        "added": Many(bounds.PREFIX_BLOCKS, HASH),
        "removed": Many(bounds.PREFIX_BLOCKS, HASH),
        "is_snapshot": FLAG,
    },
    "penstock.mesh.v1.Released": {
        "lease_ids": Many(bounds.LEASES, KEY),
        "served": Many(bounds.LEASES, Part()),
        "steps": STEPS,
    },
    "penstock.mesh.v1.PoisonUpdate": {"reports": POISON_REPORTS},
    "penstock.mesh.v1.Expect": {"lease": Part()},
    "penstock.mesh.v1.Revoke": {"lease_id": KEY},
    "penstock.mesh.v1.DrainWorker": {"grace": Part()},
}
