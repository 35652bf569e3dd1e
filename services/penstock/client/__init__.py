"""The client SDK: prompts in, tokens out, each exactly once, over one edge or many.

Owns retries, resuming after a lost connection, and the typing of errors. Never tokenizes, and keeps nothing of a
request once its answer is over.
"""

from penstock.chassis.errors import (
    Aborted,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Overloaded,
    PenstockError,
    PermissionDenied,
    QuotaExceeded,
    Unauthenticated,
    Unavailable,
)
from penstock.client.client import Client
from penstock.client.progress import IndexGap, TokenChunk
from penstock.client.request import Options, Prompt
from penstock.client.response import Generation
from penstock.client.retries import RetryPolicy
from penstock.client.session import Session

__all__ = [
    "Aborted",
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Generation",
    "IndexGap",
    "Internal",
    "InvalidArgument",
    "NotFound",
    "Options",
    "Overloaded",
    "PenstockError",
    "PermissionDenied",
    "Prompt",
    "QuotaExceeded",
    "RetryPolicy",
    "Session",
    "TokenChunk",
    "Unauthenticated",
    "Unavailable",
]
