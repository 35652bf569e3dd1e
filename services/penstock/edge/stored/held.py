"""A response that this edge generates and holds a lease of, as a sink of its request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from penstock.chassis.errors import PenstockError
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.effects import AcknowledgeCancel, Emit, Settle
from penstock.edge.lifecycle.sinks import ResponseBuffer
from penstock.edge.request.spec import RequestSpec
from penstock.edge.stored.cipher import Part, ResponseCipher
from penstock.edge.stored.stream import ResponseOutput, format_bytes
from penstock.mesh.v1.responses_pb2 import (
    RESPONSE_STATUS_CANCELLED,
    RESPONSE_STATUS_COMPLETED,
    RESPONSE_STATUS_FAILED,
    RESPONSE_STATUS_INCOMPLETE,
    LeaseState,
    ResponseKey,
    ResponseStatus,
    SealedTokens,
    StoredProgress,
)
from penstock.v1.inference_pb2 import FINISH_REASON_LENGTH, Accepted, Finished

Key = tuple[str, str]  # tenant and response


class ParsedResponse(Protocol):
    """A parsed call, which an API makes of a body."""

    @property
    def spec(self) -> RequestSpec: ...


@dataclass(eq=False, slots=True, kw_only=True)
class HeldResponse:
    """Records the output of a response, and which part of it the store has.

    `on_ended` is called once: with the end of the request, before its readers learn of it.
    """

    key: ResponseKey
    request: ParsedResponse
    created_at: int  # Unix s
    is_background: bool
    on_ended: Callable[["HeldResponse"], None]
    output: ResponseOutput
    buffer: ResponseBuffer  # always empty: the log of the output has all
    epoch: int = 0  # of the lease; 0 before it is held
    context: RequestContext | None = field(default=None, repr=False)
    saved_tokens: int = 0  # that the store has
    ending: ResponseStatus.ValueType | None = None  # of the request; readers receive it once it is stored
    object: bytes = b""  # JSON, once it has ended
    is_creating: bool = False  # the store may not have it yet
    is_resumed: bool = False  # another edge has begun it
    is_cancelled: bool = False
    is_lost: bool = False  # another edge holds it, or it is deleted or released
    _has_saved_accepted: bool = False
    _is_settled: bool = False  # a settlement is sent to auth when it is known
    _settlement: Settle | None = None  # of the request; held until then
    _send: Callable[[Settle], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> Key:
        return self.key.tenant_id, self.key.response_id

    def attach(self, context: RequestContext) -> None:
        """Receive the output of this request, and its settlement."""
        self.context = context
        context.hold_settlement = self.hold_settlement

    # Of the sink.

    def send_accepted(self, accepted: Accepted) -> None:
        assert self.context, "the context was created with this sink"
        if self.is_resumed and self.output.accepted and len(self.output.log):
            accepted = self.output.accepted  # the ids of all events stay those of the first edge
        self._has_saved_accepted = False
        self.output.describe = self.context.describe_token
        self.output.accept(accepted, self.context.request.plan.output_format)

    def send_delta(self, delta: Emit) -> int:
        if delta.token_ids:
            self.output.log.append(delta)
            self.output.changed()
        else:
            self.output.rest += delta.text
        return 0

    def send_finished(self, finished: Finished) -> None:
        assert self.output.accepted, "a request is accepted before it ends"
        finished.usage.output_tokens = len(self.output.log)  # those of other edges included
        finished.usage.prompt_tokens = self.output.accepted.prompt_tokens
        self.output.finished = finished
        is_at_limit = finished.reason == FINISH_REASON_LENGTH and self.request.spec.max_output_tokens is not None
        self.end(RESPONSE_STATUS_INCOMPLETE if is_at_limit else RESPONSE_STATUS_COMPLETED)

    def send_failed(self, error: PenstockError) -> None:
        self.output.error = error
        self.end(RESPONSE_STATUS_FAILED)

    def send_cancelled(self, acknowledgement: AcknowledgeCancel) -> bool:
        self.end(RESPONSE_STATUS_CANCELLED)
        return True

    def end(self, status: ResponseStatus.ValueType) -> None:
        self.ending = status
        self.on_ended(self)

    def hand_over(self, tokens: int) -> None:
        """Another edge continues the response after its first `tokens`, and charges the rest."""
        self.is_lost = True
        if not self.context:
            return
        own = max(0, tokens - len(self.context.spec.resume_ids))
        self.context.request.handed_over_tokens = own
        if self._settlement and not own:
            self._settlement = self._settlement._replace(prompt_tokens=0, output_tokens=0, cached_tokens=0)

    def hold_settlement(self, settlement: Settle, send: Callable[[Settle], None]) -> None:
        """Hold the settlement of the request until `settle`: until then, another edge may charge the response."""
        self._settlement, self._send = settlement, send
        if self._is_settled:
            self.settle()

    def settle(self) -> None:
        """Charge what this edge has generated and not handed over."""
        self._is_settled = True
        settlement, self._settlement = self._settlement, None
        if settlement and self._send:
            self._send(settlement)

    def publish(self) -> None:
        """Let readers know of the end."""
        self.output.status = self.ending
        self.output.changed()

    # Of the lease.

    @property
    def unsaved_tokens(self) -> int:
        return len(self.output.log) - self.saved_tokens

    def unsaved_part(self, cipher: ResponseCipher) -> SealedTokens | None:
        """Return the tokens that the store does not have, at most a part of them; None if there are none."""
        output, start = self.output, self.saved_tokens
        if not self.unsaved_tokens:
            return None
        part = output.log.part(start)
        if not self._has_saved_accepted and output.accepted:
            part.accepted, part.output_format = output.accepted.SerializeToString(), format_bytes(output.format)
        sealed = cipher.seal(self.key, Part.TOKENS, part.SerializeToString())
        return SealedTokens(first_index=start, count=len(part.token_ids), sealed=sealed)

    def progress(self, cipher: ResponseCipher, *, release: bool = False) -> StoredProgress:
        return StoredProgress(key=self.key, epoch=self.epoch, tokens=self.unsaved_part(cipher), release=release)

    def on_saved(self, tokens: SealedTokens | None) -> None:
        if tokens is not None and tokens.count:
            self.saved_tokens = tokens.first_index + tokens.count
            self._has_saved_accepted = True

    def on_extended(self, progress: StoredProgress, state: LeaseState.ValueType) -> None:
        """Apply what the store has answered to `progress`."""
        if state == LeaseState.LEASE_STATE_LOST:
            self.is_lost = True
            return
        self.on_saved(progress.tokens if progress.HasField("tokens") else None)
        if state == LeaseState.LEASE_STATE_CANCEL_REQUESTED:
            self.is_cancelled = True
