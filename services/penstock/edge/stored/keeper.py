"""Keeper of responses: begins them, and stores their progress and their end."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog

from penstock.chassis.errors import (
    Aborted,
    NotFound,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    Unavailable,
    failure_from,
)
from penstock.edge.gateway import Gateway
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.sinks import ResponseBuffer
from penstock.edge.stored.held import HeldResponse, Key, ParsedResponse
from penstock.edge.stored.output_log import MAX_PART_TOKENS
from penstock.edge.stored.stream import ResponseOutput
from penstock.edge.stored.vault import ResponseCall, ResponseVault
from penstock.mesh.v1.responses_pb2 import (
    RESPONSE_STATUS_CANCELLED,
    RESPONSE_STATUS_FAILED,
    ResponseKey,
    StoredRequest,
    StoredResponse,
)

log = structlog.get_logger()

EXTEND_INTERVAL_S = 0.5  # between stores of progress: at most this much output is computed again after a death
MAX_EXTENDED = 256  # in one call
CLAIM_INTERVAL_S = 2.0  # between looks for responses without a holder, on average
FINISH_RETRY_S = 0.5
MAX_END_DELAY_S = 2.0  # that readers wait for the store to record an end
BYTES_PER_TOKEN = 16  # of a log, on average
RELEASE_TIMEOUT_S = 2.0
SEED_BITS = 64


class ResponseKeeper:
    """Holds the responses that this edge generates, by tenant and id.

    Each has a lease, which lasts for some seconds after the latest store of its progress. An edge that loses a lease,
    because it was paused or cut off, ends the run without a charge: the edge that has the lease charges the answer.
    """

    def __init__(self, gateway: Gateway, vault: ResponseVault) -> None:
        self._gateway = gateway
        self._vault = vault
        self._held: dict[Key, HeldResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_released = False  # this edge ends
        self.lost = 0

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {
            "responses_held": len(self._held),
            "responses_lost": self.lost,
            "response_tasks": len(self._tasks),
        }

    def held(self, key: ResponseKey) -> HeldResponse | None:
        """Return a response that this edge generates."""
        return self._held.get((key.tenant_id, key.response_id))

    def hold(self, held: HeldResponse) -> None:
        """Store the progress of a response from now on."""
        self._held[held.name] = held

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside the callers. Its errors are logged."""
        task = asyncio.get_running_loop().create_task(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Responses that this edge begins.

    async def begin(self, call: ResponseCall, on_created: Callable[[RequestContext], None]) -> HeldResponse:
        """Begin a response, and return it once its request is queued and the store has it.

        `on_created` is called before anything can fail. Raises the errors of the request before it is queued, and those
        of the store; then nothing is stored, and nothing is charged.
        """
        spec = call.request.spec
        spec = spec if spec.seed is not None else replace(spec, seed=secrets.randbits(SEED_BITS))
        held = self.new_held(call.key, call.request, call.body, is_background=call.is_background)
        held.is_creating = True
        context = self._gateway.create(spec, call.credential, call.admission, held, traceparent=call.traceparent)
        held.attach(context)
        on_created(context)
        try:
            _, held.epoch = await asyncio.gather(self.start(context), self._create(call, held, context))
            held.is_creating = False
            if held.epoch:
                self.hold(held)
            else:
                held.settle()
            if held.ending is not None:
                self._on_ended(held)
            await held.output.wait(lambda: held.output.accepted is not None or held.ending is not None)
        except BaseException as error:
            if isinstance(error, PenstockError):  # else the caller has left
                held.hand_over(tokens=0)
            held.settle()
            self._gateway.cancel(context)
            if held.epoch:
                self.run_beside(self._forget(held))
            raise
        if held.output.accepted is None:
            held.settle()
            if held.epoch:
                self.run_beside(self._forget(held))
            raise held.output.error or Aborted("the request was cancelled", reason="CANCELLED")
        return held

    async def _create(self, call: ResponseCall, held: HeldResponse, context: RequestContext) -> int:
        """Store a new response. Returns the epoch of its lease; 0 if it goes on without the store."""
        try:
            return await self._vault.create(call, seed=context.spec.seed or 0, deadline=context.request.deadline)
        except (Unavailable, QuotaExceeded) as error:
            if call.unstored_request is None:
                raise
            log.info("response_not_stored", response_id=call.key.response_id, error=error.message)
            held.request = call.unstored_request
            return 0

    def new_held(
        self, key: ResponseKey, request: ParsedResponse, stored: StoredRequest, *, is_background: bool
    ) -> HeldResponse:
        """Return a response without a request yet."""
        return HeldResponse(
            key=key,
            request=request,
            created_at=stored.created_at,
            is_background=is_background,
            on_ended=self._on_ended,
            output=ResponseOutput(),
            buffer=ResponseBuffer(self._gateway.memory),
        )

    async def start(self, context: RequestContext) -> None:
        """Start the request of a response, and count the bytes of its output."""
        await self._gateway.start(context)
        if not context.request.is_done and context.request.model:
            self._gateway.add_bytes(context, BYTES_PER_TOKEN * context.request.plan.max_output_tokens)

    async def _forget(self, held: HeldResponse) -> None:
        self._held.pop(held.name, None)
        try:
            await self._vault.delete(held.key)
        except PenstockError as error:  # the entry expires
            log.warning("response_not_deleted", response_id=held.key.response_id, error=error.message)

    def drop_deleted(self, key: ResponseKey) -> None:
        """End the run of a response that was deleted. It is charged."""
        if held := self.held(key):
            held.is_lost = True
            held.settle()
            self.cancel(held)
            self._drop(held, _deleted(key))

    def cancel_held(self, key: ResponseKey) -> None:
        if held := self.held(key):
            self.cancel(held)

    def cancel(self, held: HeldResponse) -> None:
        """Cancel a response for its caller."""
        held.is_cancelled = True
        if held.context:
            self._gateway.cancel(held.context)

    # Ends.

    def _on_ended(self, held: HeldResponse) -> None:
        if held.is_creating:
            held.output.changed()
        elif held.is_lost:
            self._drop(held)
        elif not held.epoch:
            held.publish()
        elif held.is_resumed and isinstance(held.output.error, Overloaded | Unavailable):
            self.run_beside(self._try_later(held))
        elif held.output.accepted is not None or held.is_resumed:
            self.run_beside(self._finish(held))
        else:
            held.output.changed()  # `begin` raises its error

    async def _try_later(self, held: HeldResponse) -> None:
        """Give a response back whose continuation failed for a reason that may pass."""
        progress = self._vault.progress(held, release=True)
        held.is_lost = True
        held.settle()
        self._drop(held)
        await asyncio.sleep(CLAIM_INTERVAL_S)
        await self._vault.extend([progress])

    async def _finish(self, held: HeldResponse) -> None:
        """Store the end of a response, settle it, then let its readers know.

        They wait for a store that is away for a while. The settlement waits until the store says who charges it.
        """
        publishing = asyncio.get_running_loop().call_later(MAX_END_DELAY_S, held.publish)
        while True:
            try:
                while held.unsaved_tokens > MAX_PART_TOKENS and not held.is_lost:
                    await self._extend([held])
                await self._vault.finish(held)
                break
            except PenstockError as error:
                if error.reason == "RESPONSE_LOST":
                    held.hand_over(tokens=0)
                    break
                if error.reason == "RESPONSE_UNKNOWN":  # it is deleted
                    break
                if held.output.status is None:
                    log.warning("response_not_finished", response_id=held.key.response_id, error=error.message)
                await asyncio.sleep(FINISH_RETRY_S)
        held.settle()
        publishing.cancel()
        self._held.pop(held.name, None)
        if held.output.status is None:
            held.publish()

    def _drop(self, held: HeldResponse, error: PenstockError | None = None) -> None:
        """End a response for its readers here: with `error`, or because another edge has it now."""
        if self._held.get(held.name) is held:
            del self._held[held.name]
        if held.output.status is None:
            text = "another edge continues this response; retrieve it by its id"
            moved = Aborted(text, reason="RESPONSE_LOST", retry_after=0.0)
            held.output.finished, held.output.error = None, error or moved
            held.output.status = RESPONSE_STATUS_FAILED
            held.output.changed()

    # Progress.

    async def run(self) -> None:
        """Store the progress of all responses, until cancelled."""
        while True:
            await asyncio.sleep(EXTEND_INTERVAL_S)
            held = [each for each in self._held.values() if each.epoch]
            for start in range(0, len(held), MAX_EXTENDED):
                try:
                    await self._extend(held[start : start + MAX_EXTENDED])
                except PenstockError as error:
                    log.warning("responses_not_extended", count=len(held), error=error.message)

    async def _extend(self, held: list[HeldResponse]) -> None:
        """Store the progress of responses and renew their leases. Raises the errors of the store."""
        progress = [self._vault.progress(each) for each in held]
        for each, sent, state in zip(held, progress, await self._vault.extend(progress), strict=True):
            if each.epoch == sent.epoch:  # else this edge has claimed it anew meanwhile
                each.on_extended(sent, state)
            if each.is_lost and each.ending is None:
                self.run_beside(self._lose(each))
            elif each.is_cancelled and each.ending is None:
                self.cancel(each)

    async def _lose(self, held: HeldResponse) -> None:
        """End the run of a response that another edge has claimed, or that was cancelled or deleted meanwhile.

        The other edge charges the whole answer. A response that no other edge has had is charged here, a cancelled one
        with the tokens that are stored.
        """
        self.lost += 1
        self.cancel(held)
        while True:
            try:
                stored = await self._vault.read(held.key, state_only=True)
                held.hand_over(stored.token_count if _is_cancelled_after(held, stored) else 0)
                break
            except NotFound as error:
                log.info("response_gone", response_id=held.key.response_id, error=error.message)
                self._drop(held, error)
                break
            except PenstockError:
                self._drop(held)
                await asyncio.sleep(FINISH_RETRY_S)
        self._drop(held)
        held.settle()

    async def release(self, *, only_background: bool = False) -> None:
        """Give responses to other edges, with their latest tokens. None is taken over after that."""
        self.is_released = True
        held = [
            each
            for each in self._held.values()
            if each.ending is None and each.epoch and (each.is_background or not only_background)
        ]
        progress = [self._vault.progress(each, release=True) for each in held]
        for each in held:
            each.hand_over(len(each.output.log))
            each.settle()
            self.cancel(each)
            self._drop(each)
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                for start in range(0, len(progress), MAX_EXTENDED):
                    await self._vault.extend(progress[start : start + MAX_EXTENDED])
                if self._tasks:
                    await asyncio.wait(self._tasks)
        except (PenstockError, TimeoutError) as error:
            log.warning("responses_not_released", count=len(held), error=str(error))
        if not only_background:
            for each in self._held.values():
                each.settle()  # the process ends before the store has recorded their ends


def _is_cancelled_after(held: HeldResponse, stored: StoredResponse) -> bool:
    """Whether the store has cancelled a response of a late holder, before another edge had it."""
    return stored.status == RESPONSE_STATUS_CANCELLED and stored.epoch == held.epoch + 1


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001  # logged by `failure_from`
        failure_from(error)


def _deleted(key: ResponseKey) -> NotFound:
    return NotFound(f"response {key.response_id!r} does not exist: it was deleted", reason="RESPONSE_UNKNOWN")
