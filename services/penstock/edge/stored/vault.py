"""Vault: the operations of the store of responses, with sealing and opening of their contents."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import InvalidArgument, error_from_failure
from penstock.edge.request.estimate import AdmissionResult
from penstock.edge.stored.cipher import Part, ResponseCipher
from penstock.edge.stored.held import HeldResponse, ParsedResponse
from penstock.edge.stored.stream import ResponseOutput
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.mesh.v1.responses_pb2 import (
    RESPONSE_STATUS_IN_PROGRESS,
    CancelStored,
    ClaimStored,
    CreateStored,
    DeleteStored,
    ExtendStored,
    FinishStored,
    LeaseState,
    ReadChain,
    ReadStored,
    ResponseKey,
    ResponseStatus,
    ResponseTokens,
    ResumeRecord,
    StoreCall,
    StoredOutput,
    StoredProgress,
    StoredRequest,
    StoredResponse,
    StoreResult,
)
from penstock.v1.inference_pb2 import Finished

Json = dict[str, Any]


class Store(Protocol):
    async def call(self, call: StoreCall) -> StoreResult: ...


class ResponseApi(Protocol):
    """The API whose bodies and objects are stored."""

    def parse(self, stored: StoredRequest, response_id: str, history: Sequence[Json]) -> ParsedResponse:
        """Parse a body that continues `history`. Raises InvalidArgument."""

    def whole(
        self,
        request: ParsedResponse,
        created_at: int,
        output: ResponseOutput,
        status: "ResponseStatus.ValueType | None",
    ) -> bytes:
        """Return the JSON object of a response, with its output if it has ended."""

    def items(self, body: StoredRequest, output: StoredOutput) -> list[Json]:
        """Return the items of one response for a conversation: its input and its output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseCall:
    """A call whose response is stored."""

    key: ResponseKey
    body: StoredRequest = field(repr=False)
    request: ParsedResponse = field(repr=False)
    credential: Credential = field(repr=False)
    admission: AdmissionResult
    unstored_request: ParsedResponse | None = field(default=None, repr=False)  # if storing is not required
    is_background: bool = False
    previous_response_id: str = ""
    traceparent: str = ""
    session: str = ""


class ResponseVault:
    """Seals what goes to the store and opens what comes from it. All methods raise the errors of the store."""

    def __init__(self, store: Store, cipher: ResponseCipher, api: ResponseApi, *, lease_s: float) -> None:
        self._store = store
        self._cipher = cipher
        self._api = api
        self._lease_s = lease_s

    @property
    def has_keys(self) -> bool:
        return bool(self._cipher)

    async def create(self, call: ResponseCall, *, seed: int, deadline: float) -> int:
        """Store a new response and return the epoch of its lease. `deadline`: Unix s."""
        key = call.key
        resume = ResumeRecord(
            bearer=call.credential.bearer,
            loopback=call.credential.loopback,
            request_id=call.request.spec.request_id,
            seed=seed,
            model=call.request.spec.model,
            deadline=deadline,
            traceparent=call.traceparent,
            session=call.session,
        )
        create = CreateStored(
            key=key,
            previous_response_id=call.previous_response_id,
            background=call.is_background,
            request=self._cipher.seal(key, Part.REQUEST, call.body.SerializeToString()),
            resume=self._cipher.seal(key, Part.RESUME, resume.SerializeToString()),
        )
        set_seconds(create.lease, self._lease_s)
        return (await self._store.call(StoreCall(create=create))).held.epoch

    def progress(self, held: HeldResponse, *, release: bool = False) -> StoredProgress:
        return held.progress(self._cipher, release=release)

    async def extend(self, progress: list[StoredProgress]) -> Sequence[LeaseState.ValueType]:
        """Store progress and renew leases. Returns the state of each lease."""
        extend = ExtendStored(progress=progress)
        set_seconds(extend.lease, self._lease_s)
        return (await self._store.call(StoreCall(extend=extend))).extended.states

    async def finish(self, held: HeldResponse) -> None:
        """Store the end of a response, with at most a part of tokens that are not stored yet."""
        assert held.ending is not None, "the request has ended"
        held.object = held.object or self._api.whole(held.request, held.created_at, held.output, held.ending)
        output = StoredOutput(response=held.object, rest=held.output.rest)
        if held.output.finished:
            output.finished = held.output.finished.SerializeToString()
        if held.output.error:
            held.output.error.write_to(output.failure)
        finish = FinishStored(
            key=held.key,
            epoch=held.epoch,
            status=held.ending,
            tokens=held.unsaved_part(self._cipher),
            output=self._cipher.seal(held.key, Part.OUTPUT, output.SerializeToString()),
        )
        await self._store.call(StoreCall(finish=finish))

    async def claim(self, key: ResponseKey | None = None, *, limit: int = 1) -> Sequence[StoredResponse]:
        """Take over a response, or any in the background, that no edge holds."""
        claim = ClaimStored(key=key, limit=limit)
        set_seconds(claim.lease, self._lease_s)
        return (await self._store.call(StoreCall(claim=claim))).responses.responses

    async def read(self, key: ResponseKey, from_index: int = 0, *, state_only: bool = False) -> StoredResponse:
        """Read a response, with its tokens from `from_index` on; with many of them in several calls."""
        read = ReadStored(key=key, from_index=from_index, state_only=state_only)
        stored = (await self._store.call(StoreCall(read=read))).responses.responses[0]
        while stored.tokens and (end := stored.tokens[-1].first_index + stored.tokens[-1].count) < stored.token_count:
            read = ReadStored(key=key, from_index=end, state_only=True)
            more = (await self._store.call(StoreCall(read=read))).responses.responses[0]
            if not more.tokens:
                break  # the response was deleted, or its tokens were merged meanwhile
            stored.tokens.extend(more.tokens)
        return stored

    async def delete(self, key: ResponseKey) -> None:
        await self._store.call(StoreCall(delete=DeleteStored(key=key)))

    async def request_cancel(self, key: ResponseKey) -> None:
        """Ask the edge that generates a response to cancel it."""
        await self._store.call(StoreCall(cancel=CancelStored(key=key)))

    async def history(self, tenant_id: str, response_id: str) -> list[Json]:
        """Return the items of a response and of all that it continues, the oldest first; empty for an empty id.

        Raises NotFound / RESPONSE_UNKNOWN, which names the response that is missing, and InvalidArgument /
        RESPONSE_IN_PROGRESS if one has not ended.
        """
        if not response_id:
            return []
        key = ResponseKey(tenant_id=tenant_id, response_id=response_id)
        chain = await self._store.call(StoreCall(chain=ReadChain(key=key)))
        items: list[Json] = []
        for stored in chain.responses.responses:
            if stored.status == RESPONSE_STATUS_IN_PROGRESS:
                text = f"response {stored.key.response_id} is in progress; continue it when it has ended"
                raise InvalidArgument(text, field="previous_response_id", reason="RESPONSE_IN_PROGRESS")
            items += self._api.items(self.open_request(stored), self.open_output(stored))
        return items

    # Opening.

    def parse(self, key: ResponseKey, body: StoredRequest, history: Sequence[Json] = ()) -> ParsedResponse:
        return self._api.parse(body, key.response_id, history)

    def open_request(self, stored: StoredResponse) -> StoredRequest:
        return StoredRequest.FromString(self._cipher.open(stored.key, Part.REQUEST, stored.request))

    def open_resume(self, stored: StoredResponse) -> ResumeRecord:
        return ResumeRecord.FromString(self._cipher.open(stored.key, Part.RESUME, stored.resume))

    def open_output(self, stored: StoredResponse) -> StoredOutput:
        """Return the end of a response; empty if no edge has written one."""
        if not stored.output:
            return StoredOutput()
        return StoredOutput.FromString(self._cipher.open(stored.key, Part.OUTPUT, stored.output))

    def add_tokens(self, output: ResponseOutput, stored: StoredResponse) -> None:
        """Add the stored tokens of a response to its output. Raises PartsBroken."""
        for tokens in stored.tokens:
            part = ResponseTokens.FromString(self._cipher.open(stored.key, Part.TOKENS, tokens.sealed))
            output.add_part(tokens.first_index, part)

    def apply_end(self, output: ResponseOutput, stored: StoredResponse) -> bytes:
        """Apply the end of a response to its output. Returns its JSON object; empty if no edge has written one."""
        ended = self.open_output(stored)
        output.rest = ended.rest
        if ended.finished:
            output.finished = Finished.FromString(ended.finished)
        if ended.HasField("failure"):
            output.error = error_from_failure(ended.failure)
        output.status = stored.status
        return ended.response
