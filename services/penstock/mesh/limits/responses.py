"""Ranges of the stream between edges and auth's store of responses."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Data, Many, Part, Real, Table, Text, Unchecked, Whole
from penstock.mesh.limits.shared import FLAG, ID, MODEL_NAME, REASON, TOKENS, TRACEPARENT

EPOCH = Unchecked("is only compared with the epoch of the stored response")
CALL_ID = Unchecked("is returned to its sender")
STATUS = Whole(5)  # of the enum
CONTENT = Data(bounds.SEALED_CONTENT_BYTES)
LOGPROBS = Unchecked("passed on to the client")

RESPONSES: Table = {
    "penstock.mesh.v1.StoreCall": {
        "call_id": CALL_ID,
        **{
            operation: Part()
            for operation in ("create", "extend", "finish", "read", "chain", "claim", "delete", "cancel")
        },
    },
    "penstock.mesh.v1.StoreResult": {
        "call_id": CALL_ID,
        **{result: Part() for result in ("failure", "held", "extended", "done", "responses")},
    },
    "penstock.mesh.v1.ResponseKey": {"tenant_id": ID, "response_id": ID},
    "penstock.mesh.v1.StoredLease": {"epoch": EPOCH},
    "penstock.mesh.v1.SealedTokens": {
        "first_index": TOKENS,
        "count": TOKENS,
        "sealed": Data(bounds.SEALED_TOKENS_BYTES),
    },
    "penstock.mesh.v1.CreateStored": {
        "key": Part(),
        "previous_response_id": ID,
        "background": FLAG,
        "request": CONTENT,
        "resume": Data(bounds.SEALED_RESUME_BYTES),
        "lease": Part(),
    },
    "penstock.mesh.v1.ExtendStored": {"progress": Many(bounds.EXTENDED, Part()), "lease": Part()},
    "penstock.mesh.v1.StoredProgress": {"key": Part(), "epoch": EPOCH, "tokens": Part(), "release": FLAG},
    "penstock.mesh.v1.Extended": {"states": Many(bounds.EXTENDED, Whole(3))},
    "penstock.mesh.v1.FinishStored": {
        "key": Part(),
        "epoch": EPOCH,
        "status": STATUS,
        "tokens": Part(),
        "output": CONTENT,
    },
    "penstock.mesh.v1.ReadStored": {"key": Part(), "from_index": TOKENS, "state_only": FLAG},
    "penstock.mesh.v1.ReadChain": {"key": Part()},
    "penstock.mesh.v1.ClaimStored": {
        "key": Part(),
        "limit": Unchecked("auth returns at most 1,024"),
        "lease": Part(),
    },
    "penstock.mesh.v1.DeleteStored": {"key": Part()},
    "penstock.mesh.v1.CancelStored": {"key": Part()},
    "penstock.mesh.v1.Done": {},
    "penstock.mesh.v1.StoredResponses": {"responses": Many(bounds.CLAIMED, Part())},
    "penstock.mesh.v1.StoredResponse": {
        "key": Part(),
        "previous_response_id": ID,
        "background": FLAG,
        "created_at": Part(),
        "status": STATUS,
        "is_claimable": FLAG,
        "is_cancel_requested": FLAG,
        "epoch": EPOCH,
        "request": CONTENT,
        "resume": Data(bounds.SEALED_RESUME_BYTES),
        "output": CONTENT,
        "tokens": Many(bounds.TOKENS, Part()),
        "token_count": TOKENS,
    },
    # What edges seal, as another edge finds it.
    "penstock.mesh.v1.StoredRequest": {"body": CONTENT, "created_at": Whole(bounds.UNIX_S)},
    "penstock.mesh.v1.ResumeRecord": {
        "bearer": Text(bounds.BEARER_CHARS),
        "request_id": ID,
        "seed": Unchecked("every number is a seed"),
        "model": MODEL_NAME,
        "deadline": Real(bounds.UNIX_S),
        "traceparent": TRACEPARENT,
        "session": REASON,
        "loopback": FLAG,
    },
    "penstock.mesh.v1.ResponseTokens": {
        "token_ids": Many(bounds.TOKENS, Whole(bounds.VOCABULARY)),
        "logprobs": LOGPROBS,
        "top_token_ids": Many(bounds.TOKENS, Whole(bounds.VOCABULARY)),
        "top_logprobs": LOGPROBS,
        "accepted": Data(bounds.SEALED_RESUME_BYTES),
        "output_format": Data(bounds.SEALED_RESUME_BYTES),
        "text": CONTENT,
        "text_bytes": Many(bounds.TOKENS, Whole(bounds.ERROR_CHARS)),
    },
    "penstock.mesh.v1.StoredOutput": {
        "response": CONTENT,
        "rest": Text(bounds.ERROR_CHARS),
        "finished": Data(bounds.SEALED_RESUME_BYTES),
        "failure": Part(),
    },
    "google.protobuf.Timestamp": {"seconds": Whole(bounds.UNIX_S), "nanos": Whole(999_999_999)},
}
