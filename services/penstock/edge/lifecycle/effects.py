"""Effects: the actions that an active request asks the request runner to perform.

They are tuples, because one is created for every token.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.v1.inference_pb2 import FinishReason


class Reserve(NamedTuple):
    """Reserve tokens at auth. Idempotent, so it is repeated after a lost stream."""


class Enqueue(NamedTuple):
    """Send the ticket of the current attempt to a queue shard."""


class PlanAgain(NamedTuple):
    """Tokenize the prompt for a version of the model that is served now, as the version of the plan was replaced."""


class Withdraw(NamedTuple):
    """Withdraw the ticket, whether it waits or is leased."""


class Offer(NamedTuple):
    """Offer the request, which the queue has rejected, to the next region that may run it. The last one has not."""


class StartRun(NamedTuple):
    """Start the lease on its worker with the prompt and the tokens emitted so far."""

    lease: Lease


class CancelRun(NamedTuple):
    """Cancel the run on its worker. The worker acknowledges it."""


class Settle(NamedTuple):
    """Settle the reservation with the tokens that were used."""

    prompt_tokens: int
    output_tokens: int
    outcome: str  # stop, length, cancelled, shed or failed
    cached_tokens: int = 0  # of the prompt, in the worker's prefix cache
    worker_id: str = ""  # of the latest lease; empty: none


class Accept(NamedTuple):
    """Tell the client that its request is queued."""


class Emit(NamedTuple):
    """Send the next tokens and text to the client."""

    text: str
    token_ids: Sequence[int]
    first_index: int
    logprobs: Sequence[float]
    top_token_ids: Sequence[int] = ()  # the likeliest tokens at the position of each token, as many for each
    top_logprobs: Sequence[float] = ()


class Finish(NamedTuple):
    """End the answer successfully."""

    reason: "FinishReason.ValueType"
    stop_string: str


class Fail(NamedTuple):
    """End the answer in an error."""

    error: PenstockError


class AcknowledgeCancel(NamedTuple):
    """Confirm to the client that its cancelled request has ended, with the figures that the worker reported."""

    output_tokens: int
    kv_blocks_freed: int
    waited_s: float  # s from the client's cancel to the worker's acknowledgement
    is_acknowledged: bool  # false if nothing ran, or the worker was lost before it acknowledged


Effect = (
    Reserve
    | Enqueue
    | PlanAgain
    | Withdraw
    | Offer
    | StartRun
    | CancelRun
    | Settle
    | Accept
    | Emit
    | Finish
    | Fail
    | AcknowledgeCancel
)
