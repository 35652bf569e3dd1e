"""Operations on stored responses: each runs in a transaction, on either database.

An operation raises an error of `auth/responses/errors.py` before its first write, so that several operations can share
one transaction.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.auth.responses import errors
from penstock.auth.responses.messages import stored_response, unpacked
from penstock.auth.responses.response import Lease, Response, Status
from penstock.auth.store.responses import statements as sql
from penstock.auth.store.responses.locked import RESPONSE_BYTES, LockedResponses, key_of
from penstock.auth.store.responses.statements import response_of
from penstock.chassis.database.statements import Transaction
from penstock.chassis.durations import seconds_of
from penstock.chassis.errors import InvalidArgument
from penstock.mesh.limits import bounds
from penstock.mesh.v1 import responses_pb2 as pb

MAX_CLAIMED_BYTES = 32 << 20  # bytes of the responses of one claim, which has one at least
RESUME = "resume"
_STATES = {
    Lease.HELD: pb.LEASE_STATE_HELD,
    Lease.CANCEL_REQUESTED: pb.LEASE_STATE_CANCEL_REQUESTED,
    Lease.LOST: pb.LEASE_STATE_LOST,
}


@dataclass(frozen=True, slots=True)
class ResponseOperations:
    """The operations, with the settings that they follow. Keeps no state."""

    ttl: float  # s that a response lives after its creation and after its latest use as a context
    bytes_per_tenant: int  # 0: no tenant stores anything

    def perform(self, transaction: Transaction, call: pb.StoreCall) -> pb.StoreResult:
        """Perform one call. Raises PenstockError, before any write."""
        result = pb.StoreResult(call_id=call.call_id)
        match call.WhichOneof("operation"):
            case "create":
                result.held.epoch = self._create(transaction, call.create)
            case "extend":
                result.extended.states.extend(self._extend(transaction, call.extend))
            case "finish":
                self._finish(transaction, call.finish)
                result.done.SetInParent()
            case "read":
                result.responses.responses.append(self._read(transaction, call.read))
            case "chain":
                result.responses.responses.extend(self._read_chain(transaction, call.chain))
            case "claim":
                result.responses.SetInParent()
                result.responses.responses.extend(self._claim(transaction, call.claim))
            case "delete":
                self._delete(transaction, call.delete)
                result.done.SetInParent()
            case "cancel":
                result.responses.responses.append(self._cancel(transaction, call.cancel))
            case _:
                raise InvalidArgument("the call names no operation of this release", field="operation")
        return result

    def _create(self, transaction: Transaction, call: pb.CreateStored) -> int:
        now, (tenant_id, response_id) = transaction.now, key_of(call.key)
        if not tenant_id or not response_id:
            raise InvalidArgument("a response needs a tenant and an id", field="key")
        locked = LockedResponses(transaction)
        locked.lock([key_of(call.key)])
        if existing := next(iter(locked.found.values()), None):
            return self._repeat_create(locked, existing, call)
        previous = call.previous_response_id
        if previous:
            self._found(transaction, pb.ResponseKey(tenant_id=tenant_id, response_id=previous))
        size = RESPONSE_BYTES + len(call.request) + len(call.resume)
        transaction.write(sql.ADD_TENANT, [(tenant_id,)])
        used = sum(row[0] for row in transaction.run(sql.LOCK_USAGE, tenant_id))
        if used + size > self.bytes_per_tenant:
            raise errors.ResponsesFull.of(self.bytes_per_tenant, used)
        response = Response(
            tenant_id,
            response_id,
            previous,
            call.background,
            created_at=now,
            expires_at=now + self.ttl,
            lease_until=now + seconds_of(call.lease),
            context_bytes=len(call.request),
        )
        if not locked.insert(response, {"request": call.request, RESUME: call.resume}):  # another process was faster
            raise errors.ResponseExists(response_id)
        locked.write()
        return response.epoch

    def _repeat_create(self, locked: LockedResponses, response: Response, call: pb.CreateStored) -> int:
        """Renew the lease of a response that the same call has created. Raises ResponseExists for any other."""
        transaction = locked.transaction
        contents = self._contents(transaction, [response], "").get(response.number, {})
        same = (contents.get("request", b""), contents.get(RESUME, b"")) == (call.request, call.resume)
        if not same or response.token_count or not response.is_holder(response.epoch) or response.epoch > 1:
            raise errors.ResponseExists(response.response_id)
        response.extend(response.epoch, transaction.now, seconds_of(call.lease))
        locked.mark(response)
        locked.write()
        return response.epoch

    def _extend(self, transaction: Transaction, call: pb.ExtendStored) -> "list[pb.LeaseState.ValueType]":
        locked, lease_s = LockedResponses(transaction), seconds_of(call.lease)
        locked.lock(key_of(each.key) for each in call.progress)
        states = [_STATES[self._extend_one(locked, each, lease_s)] for each in call.progress]
        locked.write()
        return states

    def _extend_one(self, locked: LockedResponses, progress: pb.StoredProgress, lease_s: float) -> Lease:
        response, now = locked.found.get(key_of(progress.key)), locked.transaction.now
        if response is None:
            return Lease.LOST
        if response.lapse(now):
            locked.end(response)
        state = response.extend(progress.epoch, now, lease_s, release=progress.release)
        if state is Lease.LOST:
            return state
        if progress.HasField("tokens") and not locked.append(response, progress.tokens):
            response.extend(progress.epoch, now, lease_s, release=True)  # another edge continues it from its tokens
            state = Lease.LOST
        locked.mark(response)
        return state

    def _finish(self, transaction: Transaction, call: pb.FinishStored) -> None:
        if not pb.RESPONSE_STATUS_IN_PROGRESS < call.status <= pb.RESPONSE_STATUS_CANCELLED:
            raise InvalidArgument("a response ends in a final state", field="status")
        locked, status = LockedResponses(transaction), Status(call.status)
        response = self._locked(locked, call.key)
        response.lapse(transaction.now)
        if not response.check_finish(call.epoch, status):
            return
        if call.HasField("tokens") and not locked.append(response, call.tokens):
            raise errors.ResponseLost(response.response_id)
        response.finish(status)
        locked.put_output(response, call.output)
        locked.end(response)
        locked.write()

    def _read(self, transaction: Transaction, call: pb.ReadStored) -> pb.StoredResponse:
        response = self._found(transaction, call.key)
        contents = {} if call.state_only else self._contents(transaction, [response])
        parts = self._parts(transaction, response, call.from_index)
        return stored_response(response, transaction.now, contents.get(response.number, {}), parts)

    def _read_chain(self, transaction: Transaction, call: pb.ReadChain) -> list[pb.StoredResponse]:
        now, (tenant_id, response_id) = transaction.now, key_of(call.key)
        found = [response_of(row) for row in transaction.run(sql.CHAIN, tenant_id, response_id, bounds.CHAINED)]
        missing = found[0].previous_response_id if found else response_id
        size = sum(each.context_bytes for each in found)
        if len(found) > bounds.CHAINED or size > bounds.CHAIN_BYTES:
            text = (
                f"the conversation has more than {bounds.CHAINED} responses or {bounds.CHAIN_BYTES} bytes; begin a new"
                " one with what matters of it"
            )
            raise InvalidArgument(text, field="previous_response_id", reason="CONTEXT_TOO_LARGE")
        if missing:
            raise errors.ResponseUnknown(missing)
        until = now + self.ttl
        keys = sorted((each.tenant_id, each.response_id) for each in found)
        transaction.write(sql.KEEP, [(until, *key, until) for key in keys])
        contents = self._contents(transaction, found)
        for each in found:
            each.lapse(now)
        return [stored_response(each, now, contents.get(each.number, {})) for each in found]

    def _claim(self, transaction: Transaction, call: pb.ClaimStored) -> list[pb.StoredResponse]:
        now, locked = transaction.now, LockedResponses(transaction)
        if call.HasField("key"):
            found = [self._locked(locked, call.key)]
        else:
            limit = min(call.limit, bounds.CLAIMED)
            found = [response_of(row) for row in transaction.run(sql.CLAIMABLE, now, limit)]
        claimed: list[Response] = []
        size = 0
        for each in found:
            if claimed and size + each.size > MAX_CLAIMED_BYTES:
                break
            if each.lapse(now):
                locked.end(each)
            elif each.claim(now, seconds_of(call.lease)):
                locked.mark(each)
                claimed.append(each)
                size += each.size
        locked.write()
        contents = self._contents(transaction, claimed, "")
        return [
            stored_response(each, now, contents.get(each.number, {}), self._parts(transaction, each))
            for each in claimed
        ]

    def _delete(self, transaction: Transaction, call: pb.DeleteStored) -> None:
        locked = LockedResponses(transaction)
        locked.delete([self._locked(locked, call.key)])
        locked.write()

    def _cancel(self, transaction: Transaction, call: pb.CancelStored) -> pb.StoredResponse:
        locked, now = LockedResponses(transaction), transaction.now
        response = self._locked(locked, call.key)
        if response.is_in_progress:
            response.cancel(now)
            if not response.is_in_progress:
                locked.end(response)
            locked.mark(response)
            locked.write()
        contents = self._contents(transaction, [response]).get(response.number, {})
        return stored_response(response, now, contents, self._parts(transaction, response))

    def _locked(self, locked: LockedResponses, key: pb.ResponseKey) -> Response:
        locked.lock([key_of(key)])
        for response in locked.found.values():
            return response
        raise errors.ResponseUnknown(key.response_id)

    def _found(self, transaction: Transaction, key: pb.ResponseKey) -> Response:
        for row in transaction.run(sql.FIND, *key_of(key)):
            response = response_of(row)
            response.lapse(transaction.now)  # as the next change or the upkeep writes it
            return response
        raise errors.ResponseUnknown(key.response_id)

    def _contents(
        self, transaction: Transaction, responses: Iterable[Response], without: str = RESUME
    ) -> dict[int, dict[str, bytes]]:
        """Return the contents of responses by their numbers, except those of one kind."""
        found: dict[int, dict[str, bytes]] = {}
        rows = transaction.run_many(sql.READ_CONTENTS, [(each.number, without) for each in responses])
        for number, kind, sealed in rows:
            found.setdefault(number, {})[kind] = sealed
        return found

    def _parts(self, transaction: Transaction, response: Response, from_index: int = 0) -> list[pb.SealedTokens]:
        if response.token_count <= from_index:
            return []
        rows = transaction.run(sql.READ_TOKENS, response.number, response.number, from_index)
        return unpacked((parts for (parts,) in rows), from_index)
