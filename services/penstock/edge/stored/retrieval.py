"""Retrieval of responses by id, wherever they are generated."""

import asyncio
from contextlib import suppress
from typing import NamedTuple

import structlog

from penstock.chassis.errors import NotFound, PenstockError
from penstock.edge.stored.held import HeldResponse, Key, ParsedResponse
from penstock.edge.stored.keeper import ResponseKeeper
from penstock.edge.stored.stream import ResponseOutput
from penstock.edge.stored.takeover import ResponseTakeover
from penstock.edge.stored.vault import ResponseVault
from penstock.mesh.v1.responses_pb2 import RESPONSE_STATUS_FAILED, RESPONSE_STATUS_IN_PROGRESS, ResponseKey

log = structlog.get_logger()

FOLLOW_INTERVAL_S = 0.25  # between reads of a response that another edge generates
CANCEL_INTERVAL_S = 0.05  # between reads of a response that another edge cancels
CANCEL_TIMEOUT_S = 5.0


class ResponseView(NamedTuple):
    """A response as a caller retrieves it."""

    request: ParsedResponse
    created_at: int  # Unix s
    output: ResponseOutput
    object: bytes = b""  # JSON, of a response that has ended; empty if no edge has written it


def _view_of(held: HeldResponse) -> ResponseView:
    return ResponseView(held.request, held.created_at, held.output)


class ResponseRetrieval:
    """Finds responses here, at other edges and in the store."""

    def __init__(self, keeper: ResponseKeeper, takeover: ResponseTakeover, vault: ResponseVault) -> None:
        self._keeper = keeper
        self._takeover = takeover
        self._vault = vault
        self._followed: dict[Key, ResponseOutput] = {}

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {"responses_followed": len(self._followed)}

    async def find(self, key: ResponseKey, *, follows: bool) -> ResponseView:
        """Return a response of a tenant. One that no edge generates is continued here.

        `follows`: the caller reads the output as it is generated. Raises NotFound / RESPONSE_UNKNOWN.
        """
        name = key.tenant_id, key.response_id
        if held := self._keeper.held(key):
            return _view_of(held)
        stored = await self._vault.read(key)
        if stored.is_claimable and (held := await self._takeover.take_over(key, self._followed.get(name))):
            return _view_of(held)
        body = self._vault.open_request(stored)
        request = self._vault.parse(key, body)
        has_ended = stored.status != RESPONSE_STATUS_IN_PROGRESS
        if name in self._followed and not has_ended:  # else its readers here learn of the end later
            return ResponseView(request, body.created_at, self._followed[name])
        output = ResponseOutput()
        self._vault.add_tokens(output, stored)
        if has_ended:
            return ResponseView(request, body.created_at, output, self._vault.apply_end(output, stored))
        if follows:
            self._followed[name] = output
            self._keeper.run_beside(self._follow(key, output))
        return ResponseView(request, body.created_at, output)

    async def _follow(self, key: ResponseKey, output: ResponseOutput) -> None:
        """Read the output of another edge until it ends or has no reader here. Continue it if its edge dies."""
        try:
            while output.status is None:
                await asyncio.sleep(FOLLOW_INTERVAL_S)
                held = self._keeper.held(key)
                if not output.listeners or (held and held.output is output):
                    return
                try:
                    await self._follow_once(key, output)
                except NotFound as error:
                    output.error, output.status = error, RESPONSE_STATUS_FAILED
                except PenstockError as error:
                    log.debug("response_not_followed", response_id=key.response_id, error=error.message)
                output.changed()
        finally:
            del self._followed[key.tenant_id, key.response_id]

    async def _follow_once(self, key: ResponseKey, output: ResponseOutput) -> None:
        stored = await self._vault.read(key, len(output.log), state_only=True)
        if stored.is_claimable:
            await self._takeover.take_over(key, output)
            return
        self._vault.add_tokens(output, stored)
        if stored.status != RESPONSE_STATUS_IN_PROGRESS:
            stored = await self._vault.read(key, len(output.log))
            self._vault.add_tokens(output, stored)
            self._vault.apply_end(output, stored)

    async def cancel(self, key: ResponseKey) -> None:
        """Cancel a response, and wait until it has ended, at most `CANCEL_TIMEOUT_S`."""
        await self._vault.request_cancel(key)
        self._keeper.cancel_held(key)
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                while (await self._vault.read(key, state_only=True)).status == RESPONSE_STATUS_IN_PROGRESS:  # noqa: ASYNC110  # of another process
                    await asyncio.sleep(CANCEL_INTERVAL_S)
                if held := self._keeper.held(key):  # the store's answer to its end is on the way
                    await held.output.wait(lambda: held.output.status is not None)

    async def delete(self, key: ResponseKey) -> None:
        """Delete a response. One in progress is cancelled, and charged."""
        await self._vault.delete(key)
        self._keeper.drop_deleted(key)
