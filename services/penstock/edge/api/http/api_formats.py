"""Parts of responses that differ between the APIs but not between endpoints: errors, keep-alives and id headers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.chassis.errors import PenstockError
from penstock.edge.api.anthropic import errors as anthropic_errors
from penstock.edge.api.anthropic.serializer import PING
from penstock.edge.api.openai import errors as openai_errors
from penstock.edge.api.openai.streaming import SSE_KEEPALIVE


@dataclass(frozen=True, slots=True)
class ApiFormat:
    error_body: Callable[[PenstockError], dict[str, Any]]  # returns the JSON object
    keepalive: bytes  # of a silent stream
    id_headers: tuple[bytes, ...]  # that have the id of the request


OPENAI = ApiFormat(openai_errors.error_body, SSE_KEEPALIVE, (b"x-request-id",))
ANTHROPIC = ApiFormat(anthropic_errors.error_body, PING, (b"x-request-id", b"request-id"))
