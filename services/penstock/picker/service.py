"""The external processor: carries messages between a proxy's stream, its exchange and the picker. No policy."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from penstock.chassis.errors import PenstockError
from penstock.ext_proc.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from penstock.ext_proc.external_processor_pb2_grpc import ExternalProcessorServicer
from penstock.picker import metrics
from penstock.picker.exchange import replies
from penstock.picker.exchange.exchange import Exchange
from penstock.picker.exchange.held_bodies import HeldBodies
from penstock.picker.picking.pick import Pick, PickRequest
from penstock.picker.picking.picker import EndpointPicker
from penstock.picker.requests.build import pick_request
from penstock.picker.requests.caller import CallerHeaders

MAX_EARLY_MESSAGES = 64  # that arrive while a request waits; a proxy that sends more is not read on until it is placed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorLimits:
    """Settings of one stream."""

    max_body_bytes: int
    max_held_bytes: int  # of all streams
    max_wait: float  # s


class ExternalProcessor(ExternalProcessorServicer):
    """Serves the stream of each HTTP request. A stream that ends frees the slot of its request."""

    def __init__(
        self, picker: EndpointPicker, callers: CallerHeaders, limits: ProcessorLimits, clock: Callable[[], float]
    ) -> None:
        self._picker = picker
        self._callers = callers
        self._limits = limits
        self._clock = clock
        self._held = HeldBodies(limits.max_held_bytes)
        self._waiters: dict[Pick, asyncio.Future[None]] = {}

    async def Process(self, requests: Any, context: Any) -> None:  # type: ignore[override]  # yields nothing
        exchange, messages, pick = Exchange(self._limits.max_body_bytes, self._held), _Messages(context), None
        try:
            while (message := await messages.read()) is not grpc.aio.EOF:
                for response in exchange.receive(message):
                    await context.write(response)
                if exchange.is_complete and pick is None:
                    began_at = self._clock()
                    pick = self._submit(pick_request(exchange, self._callers, self._picker.estimates))
                    took_s = self._clock() - began_at
                    if not pick.is_decided and not await self._wait(pick, exchange, messages, context):
                        return
                    for response in self._answers(pick, exchange, took_s):
                        await context.write(response)
                if pick and exchange.served:
                    self._on_served(pick, exchange)
        except PenstockError as error:
            metrics.record_rejected(self._callers.read(exchange.headers).priority, error.reason)
            await context.write(exchange.rejected(error))
        finally:
            exchange.drop_body()
            if pick:
                self._end(pick, exchange)

    def wake(self, decided: Iterable[Pick]) -> None:
        """Let the streams of picks that were decided go on."""
        for pick in decided:
            waiter = self._waiters.get(pick)
            if waiter and not waiter.done():
                waiter.set_result(None)

    def on_fleet_changed(self) -> None:
        self.wake(self._picker.on_fleet_changed(self._clock()))

    async def tick(self, interval_s: float) -> None:
        """Reject requests that are late, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            self.wake(self._picker.expire(self._clock()))

    def _submit(self, request: PickRequest) -> Pick:
        pick, decided = self._picker.submit(request, self._clock())
        self.wake(decided)
        return pick

    async def _wait(self, pick: Pick, exchange: Exchange, messages: "_Messages", context: Any) -> bool:
        """Return true once a pick is decided, false if its stream ends first."""
        if exchange.awaits_deadline:
            await context.write(replies.wait_for(self._limits.max_wait))
        waiter = self._waiters[pick] = asyncio.get_running_loop().create_future()
        try:
            return await messages.watch_until(waiter)
        finally:
            del self._waiters[pick]

    def _answers(self, pick: Pick, exchange: Exchange, took_s: float) -> Iterable[ProcessingResponse]:
        """Return the answers with the endpoints of a decided pick. Raises the error of a rejection."""
        if pick.error:
            raise pick.error
        metrics.record_picked(
            pick, pick.request.model if pick.request.model in self._picker.fleet.models else "", took_s
        )
        return exchange.picked(pick.destinations)

    def _on_served(self, pick: Pick, exchange: Exchange) -> None:
        served, exchange.served = exchange.served, ""
        if pick.destinations[:1] != (served,):
            metrics.record_moved()
        self.wake(self._picker.on_served(pick, served, self._clock()))

    def _end(self, pick: Pick, exchange: Exchange) -> None:
        if pick.destinations:
            metrics.record_ended(is_complete=exchange.is_ended)
        if exchange.status:
            usage = exchange.usage.read() if exchange.is_ended else None
            self.wake(self._picker.settle(pick, usage, self._clock()))
        else:
            self.wake(self._picker.withdraw(pick, self._clock()))


class _Messages:
    """The messages of a stream, which is also read while its request waits, so that its end is seen."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._early: deque[ProcessingRequest] = deque()

    async def read(self) -> Any:
        """Return the next message, or `grpc.aio.EOF`."""
        return self._early.popleft() if self._early else await self._context.read()

    async def watch_until(self, waiter: "asyncio.Future[None]") -> bool:
        """Return true when `waiter` is done, false if the stream ends first. Messages until then are kept."""
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._read_to_end())
            await asyncio.wait([watch, waiter], return_when=asyncio.FIRST_COMPLETED)
            watch.cancel()
        return waiter.done()

    async def _read_to_end(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            self._early.append(message)
            if len(self._early) >= MAX_EARLY_MESSAGES:
                await asyncio.get_running_loop().create_future()  # not read on; the flow control holds the rest
