"""Messages of stored responses."""

from collections.abc import Iterable, Mapping

from penstock.auth.responses.response import Response
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1.responses_pb2 import SealedTokens, StoredResponse, StoreResult

MAX_TOKENS_BYTES = 16 << 20  # bytes of tokens in one result


def stored_response(
    response: Response, now: float, contents: Mapping[str, bytes], parts: Iterable[SealedTokens] = ()
) -> StoredResponse:
    """Return the message of a response. `contents` are sealed bytes by the name of their field."""
    message = StoredResponse(
        previous_response_id=response.previous_response_id,
        background=response.is_background,
        status=int(response.status),  # type: ignore[arg-type]  # the numbers are equal
        is_claimable=response.is_claimable(now),
        is_cancel_requested=response.is_cancel_requested,
        epoch=response.epoch,
        token_count=response.token_count,
        request=contents.get("request", b""),
        resume=contents.get("resume", b""),
        output=contents.get("output", b""),
        tokens=parts,
    )
    message.key.tenant_id, message.key.response_id = response.tenant_id, response.response_id
    message.created_at.FromNanoseconds(round(response.created_at * 1e6) * 1_000)
    return message


def packed(part: SealedTokens) -> bytes:
    """Return a part as a row holds it. Rows are merged by concatenation, as serialized messages are."""
    return StoredResponse(tokens=[part]).SerializeToString()


def unpacked(rows: Iterable[bytes], from_index: int) -> list[SealedTokens]:
    """Return the parts of rows that end after `from_index`, up to `MAX_TOKENS_BYTES` of them, at least one."""
    found: list[SealedTokens] = []
    size = 0
    for row in rows:
        for part in StoredResponse.FromString(row).tokens:
            if part.first_index + part.count <= from_index:
                continue
            size += len(part.sealed)
            if found and size > MAX_TOKENS_BYTES:
                return found
            found.append(part)
    return found


def failed(call_id: int, error: PenstockError) -> StoreResult:
    result = StoreResult(call_id=call_id)
    error.write_to(result.failure)
    return result
