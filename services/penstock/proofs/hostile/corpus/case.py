"""One case of the corpus: what is sent to which port, and the rule that tells whether the mesh accepted it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.proofs.hostile.ports import Port
from penstock.proofs.hostile.wire.grpc_call import CallResult
from penstock.proofs.hostile.wire.http1 import HttpResult

INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION = 3, 5, 6, 9  # statuses of gRPC
REACHED_STATUSES = (0, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """What the attacker got."""

    is_accepted: bool  # an answer, a side effect or a success that the attacker should not get
    is_internal_error: bool = False  # the input was not expected by the code
    is_held: bool = False  # no answer until the attacker left
    answer: str = ""  # for notes


Send = Callable[[], Awaitable[CaseOutcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileCase:
    group: str
    name: str
    port: Port
    send: Send

    @property
    def label(self) -> str:
        return f"{self.group}, {self.port.kind}: {self.name}"


def call_outcome(result: CallResult, *, accepted: bool, may_be_internal: bool = False) -> CaseOutcome:
    status = "no status" if result.status is None else f"status {result.status}"
    return CaseOutcome(
        is_accepted=accepted,
        is_internal_error=result.is_internal_error and not may_be_internal,
        is_held=result.is_open and not result.messages,
        answer=f"HTTP {result.http_status or 'none'}, {status}, {len(result.messages)} messages {result.reason}",
    )


def http_outcome(result: HttpResult) -> CaseOutcome:
    """A request that has to be refused is accepted if any response to its bytes is a success."""
    return CaseOutcome(
        is_accepted=result.has_success,
        is_internal_error=result.is_internal_error,
        is_held=not result.statuses and not result.was_refused,
        answer=f"HTTP {' '.join(map(str, result.statuses)) or 'none'}",
    )


def succeeded(result: CallResult) -> bool:
    """The rule for calls of the public API: a status OK or any message of an answer."""
    return result.is_ok or bool(result.messages)


def reached_handler(result: CallResult) -> bool:
    """The rule for services that the caller must not reach at all: the arguments were judged, or answered."""
    return result.status in REACHED_STATUSES or bool(result.messages)


def stays_open(result: CallResult) -> bool:
    """The rule for streams between tiers: the peer said hello, and did not refuse the stream afterwards."""
    return result.is_ok or (bool(result.messages) and result.is_open)
