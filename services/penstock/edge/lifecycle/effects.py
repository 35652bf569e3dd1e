"""What a flight asks its surroundings to do. Tuples, because one is made for every token."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.v1.inference_pb2 import FinishReason


class Reserve(NamedTuple):
    """Ask auth for the right to spend; idempotent, so it is asked again after a lost link."""


class Enqueue(NamedTuple):
    """Put the ticket of the present attempt into a shard."""


class Withdraw(NamedTuple):
    """Take the ticket back, waiting or leased."""


class StartRun(NamedTuple):
    """Start the lease on its worker with prompt and emitted tokens."""

    lease: Lease


class CancelRun(NamedTuple):
    """Stop the run on its worker; its receipt is awaited."""


class Settle(NamedTuple):
    """End the reservation with what was spent."""

    prompt_tokens: int
    output_tokens: int
    outcome: str  # stop, length, cancelled, shed or failed


class Accept(NamedTuple):
    """Tell the client that its request waits for its turn."""


class Emit(NamedTuple):
    """Give the client the next piece."""

    text: str
    token_ids: Sequence[int]
    first_index: int
    logprobs: Sequence[float]


class Finish(NamedTuple):
    """End the answer well."""

    reason: "FinishReason.ValueType"
    stop_string: str


class Fail(NamedTuple):
    """End the answer in an error."""

    error: PenstockError


class AcknowledgeCancel(NamedTuple):
    """Tell that the request is over as its client asked, with the worker's receipt."""

    output_tokens: int
    kv_blocks_freed: int
    waited_s: float  # s, from the client's leaving to the receipt
    is_acknowledged: bool  # False when nothing ran, or the worker died before it answered


Effect = (
    Reserve | Enqueue | Withdraw | StartRun | CancelRun | Settle | Accept | Emit | Finish | Fail | AcknowledgeCancel
)
