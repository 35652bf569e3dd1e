"""The client SDK: sends prompts to one or more edges and returns each token of an answer exactly once.

It retries, resumes an answer after a lost connection, and raises typed errors. It does not tokenize, and it keeps no
state of a request after its end.
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
from penstock.client.batches import BatchesClient
from penstock.client.client import Client
from penstock.client.progress import IndexGap, TokenChunk
from penstock.client.request import Options, Prompt
from penstock.client.response import Generation
from penstock.client.retries import RetryPolicy
from penstock.client.session import Session
from penstock.v1.inference_pb2 import Choices, Form

__all__ = [
    "Aborted",
    "BatchesClient",
    "Cancelled",
    "Choices",
    "Client",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Form",
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
