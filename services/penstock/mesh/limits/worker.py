"""Ranges of the stream between edges and workers, and of model cards."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Data, Many, Part, Table, Text, Unchecked, Whole
from penstock.mesh.limits.shared import DIGEST, FLAG, HASH, ID, KEY, MODEL_KEY, MODEL_NAME, TOKENS, TRACEPARENT

PER_RUN = Unchecked("the worker fails a wrong run alone, with START_INVALID")

WORKER: Table = {
    "penstock.mesh.v1.Start": {
        "handle": KEY,
        "lease_id": ID,
        "ticket_id": ID,
        "token_ids": PER_RUN,
        "emitted": PER_RUN,
        "max_output_tokens": PER_RUN,
        "sampling": Unchecked("the worker fails a run with wrong sampling alone, with START_INVALID"),
        "stop_token_ids": Many(bounds.STOP_TOKENS, Unchecked("only compared with tokens")),
        "ignore_eos": FLAG,
        "cache_salt": PER_RUN,
        "traceparent": TRACEPARENT,
        "fingerprint": HASH,
        "time_left_nanos": Unchecked("the worker limits it to 48 hours"),
        "model": MODEL_KEY,
        "form": Part(),
        "embeds": FLAG,
        "request_id": ID,
    },
    "penstock.v1.Form": {"json_schema": PER_RUN, "regex": PER_RUN, "lark": PER_RUN, "choices": Part()},
    "penstock.v1.Choices": {"texts": PER_RUN},
    "penstock.mesh.v1.Cancel": {"handle": KEY},
    "penstock.mesh.v1.Step": {
        "handles": KEY,
        "token_ids": Unchecked("the edge ends a run whose token its vocabulary lacks"),
        "indexes": Unchecked("only compared with the tokens of the run"),
        "logprobs": Unchecked("passed on to the client"),
        "step": Unchecked("only passed on"),
        "top_token_ids": Unchecked("passed on to the client"),
        "top_logprobs": Unchecked("passed on to the client"),
    },
    "penstock.mesh.v1.RunFinished": {
        "handle": KEY,
        "reason": Whole(2),
        "output_tokens": TOKENS,
        "cached_prompt_tokens": TOKENS,
        "times": Part(),
        "embedding": Many(
            bounds.EMBEDDING, Unchecked("the edge fails a run whose embedding is not of the card's size")
        ),
    },
    "penstock.mesh.v1.RunTimes": {"wait": Part(), "prefill": Part(), "decode": Part()},
    "penstock.mesh.v1.RunCancelled": {
        "handle": KEY,
        "output_tokens": TOKENS,
        "kv_blocks_freed": Unchecked("only passed on"),
        "step": Unchecked("only passed on"),
        "times": Part(),
    },
    "penstock.mesh.v1.RunFailed": {"handle": KEY, "failure": Part(), "never_ran": FLAG},
    "penstock.mesh.v1.GetModelCardRequest": {},
    "penstock.mesh.v1.GetModelCardResponse": {"card": Part()},
    "penstock.mesh.v1.ModelCard": {
        "name": MODEL_NAME,
        "digest": DIGEST,
        "context_length": TOKENS,
        "vocabulary_size": Whole(bounds.VOCABULARY),
        "eos_token_ids": Many(bounds.STOP_TOKENS, Whole(bounds.VOCABULARY)),
        "bos_token_id": Whole(bounds.VOCABULARY),
        "chat_template": Text(bounds.TEMPLATE_CHARS),
        "tokenizer_json_zlib": Data(bounds.TOKENIZER_BYTES),
        "block_size": Whole(bounds.BLOCK_SIZE),
        "enforces_forms": FLAG,
        "embedding_size": Whole(bounds.EMBEDDING),
    },
}
