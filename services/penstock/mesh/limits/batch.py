"""Ranges of calls on files and batches, and of the streams on which edges run lines."""

from penstock.mesh.limits import bounds
from penstock.mesh.limits.rules import Data, Many, Pairs, Part, Rule, Table, Text, Unchecked, Whole
from penstock.mesh.limits.shared import DIGEST, FLAG, ID, MODEL_NAME, PRIORITY, REASON, TOKENS

NUMBER = Unchecked("names a line on its stream, and is only compared")
PAGE_SIZE = Unchecked("the service judges it")
PURPOSE = Whole(2)  # of the enum
CONTENT = Data(bounds.FILE_PART_BYTES)
OFFSET = Whole(bounds.FILE_BYTES)
LINES = Whole(bounds.BATCH_LINES)
METADATA = Pairs(256, bounds.REASON_CHARS)  # the service judges what a caller may give
TOKEN_IDS = Many(bounds.LINE_PROGRESS_BYTES, Whole(bounds.VOCABULARY))
LOGPROBS = Unchecked("passed on to the client")
TOTAL_TOKENS = Whole(bounds.TOTAL_TOKENS)


def _parts(*names: str) -> dict[str, Rule]:
    return {name: Part() for name in names}


FILES: Table = {
    "penstock.v1.File": {
        "id": ID,
        "filename": REASON,
        "purpose": PURPOSE,
        "size_bytes": OFFSET,
        **_parts("create_time", "expire_time"),
    },
    "penstock.v1.UploadFileRequest": {"header": Part(), "content": CONTENT},
    "penstock.v1.UploadHeader": {"filename": REASON, "purpose": PURPOSE, "ttl": Part()},
    "penstock.v1.GetFileRequest": {"file_id": ID},
    "penstock.v1.ListFilesRequest": {"purpose": PURPOSE, "page_size": PAGE_SIZE, "after": ID},
    "penstock.v1.ListFilesResponse": {"files": Many(bounds.LISTED_FILES, Part()), "has_more": FLAG},
    "penstock.v1.ReadFileRequest": {"file_id": ID, "offset": OFFSET},
    "penstock.v1.DeleteFileRequest": {"file_id": ID},
    "penstock.v1.DeleteFileResponse": {},
}

BATCHES: Table = {
    "penstock.v1.Batch": {
        "id": ID,
        "endpoint": REASON,
        "input_file_id": ID,
        "status": Whole(8),
        "output_file_id": ID,
        "error_file_id": ID,
        **_parts("lines", "tokens", "completion_window"),
        "metadata": METADATA,
        **_parts("failure", "create_time", "start_time", "finalize_time", "end_time", "cancel_time", "expire_time"),
        "expected_end_time": Part(),
    },
    "penstock.v1.LineCounts": {"total": LINES, "completed": LINES, "failed": LINES},
    "penstock.v1.TokenCounts": {"input": TOTAL_TOKENS, "output": TOTAL_TOKENS},
    "penstock.v1.CreateBatchRequest": {
        "input_file_id": ID,
        "endpoint": REASON,
        "completion_window": Part(),
        "metadata": METADATA,
        "output_ttl": Part(),
        "idempotency_key": REASON,  # the service judges what a caller may give
    },
    "penstock.v1.GetBatchRequest": {"batch_id": ID},
    "penstock.v1.ListBatchesRequest": {"page_size": PAGE_SIZE, "after": ID},
    "penstock.v1.ListBatchesResponse": {"batches": Many(bounds.LISTED_BATCHES, Part()), "has_more": FLAG},
    "penstock.v1.CancelBatchRequest": {"batch_id": ID},
}

CALLS: Table = {
    "penstock.mesh.v1.Owner": {"tenant_id": ID, "key_id": ID, "delegation": Data(bounds.DELEGATION_BYTES)},
    "penstock.mesh.v1.UploadFileRequest": {"owner": Part(), "request": Part(), "is_complete": FLAG},
    "penstock.mesh.v1.UploadFileResponse": {"file": Part()},
    "penstock.mesh.v1.ReadFileRequest": {"owner": Part(), "request": Part()},
    "penstock.mesh.v1.ReadFileResponse": {"content": CONTENT},
    "penstock.mesh.v1.CallRequest": _parts(
        *("owner", "get_file", "list_files", "delete_file"),
        *("create_batch", "get_batch", "cancel_batch", "list_batches"),
    ),
    "penstock.mesh.v1.CallResponse": _parts("file", "files", "deleted", "batch", "batches"),
}

LINE_STREAM: Table = {
    "penstock.mesh.v1.StartLine": {
        "number": NUMBER,
        "line_id": Text(bounds.LINE_ID_CHARS, "[0-9a-f]*"),
        "owner": Part(),
        "endpoint": REASON,
        "body": Data(bounds.LINE_BYTES),
        "timeout": Part(),
        "priority": PRIORITY,
        "progress": Data(bounds.LINE_PROGRESS_BYTES),
        "may_have_run": FLAG,
    },
    "penstock.mesh.v1.StopLine": {"number": NUMBER},
    "penstock.mesh.v1.LineRunning": {"number": NUMBER},
    "penstock.mesh.v1.LineProgress": {"number": NUMBER, "progress": Data(bounds.LINE_PROGRESS_BYTES)},
    "penstock.mesh.v1.LineEnded": {
        "number": NUMBER,
        "verdict": Whole(5),
        "status": Whole(bounds.HTTP_STATUS),
        "body": Data(bounds.LINE_ANSWER_BYTES),
        "failure": Part(),
        "input_tokens": TOKENS,
        "output_tokens": TOKENS,
        "request_id": ID,
    },
    # What an edge puts into `progress`, as another edge finds it.
    "penstock.mesh.v1.LineState": {
        "model": MODEL_NAME,
        "model_version": DIGEST,
        "text": Text(bounds.LINE_PROGRESS_BYTES),
        "token_ids": TOKEN_IDS,
        "logprobs": LOGPROBS,
        "top_token_ids": TOKEN_IDS,
        "top_logprobs": LOGPROBS,
    },
}

BATCH: Table = {**FILES, **BATCHES, **CALLS, **LINE_STREAM}
