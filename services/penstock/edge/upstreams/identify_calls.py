"""Questions to auth about callers that the edge does not know."""

import asyncio
from dataclasses import dataclass

from penstock.chassis.errors import Overloaded, PenstockError, Unavailable
from penstock.chassis.ids import new_id
from penstock.edge.auth_fallback.fallback import AuthFallback
from penstock.edge.auth_fallback.watch import OutageWatch
from penstock.edge.upstreams.auth_streams import AuthStreams
from penstock.mesh.v1.admission_pb2 import AdmitRequest, Credential, Identified, Identify, Identity


@dataclass(slots=True, eq=False)
class IdentifyCall:
    request_id: str
    credential: Credential
    response: "asyncio.Future[Identified]"
    delegates: bool = False
    address: str = ""  # of the replica that received the frame; empty if none did


class IdentifyCalls:
    """Open `identify` frames. Any replica answers them, so that they move if theirs is lost or does not respond."""

    def __init__(self, streams: AuthStreams, watch: OutageWatch, fallback: AuthFallback, *, max_calls: int) -> None:
        self._streams = streams
        self._watch = watch
        self._fallback = fallback
        self._max_calls = max_calls
        self._calls: dict[str, IdentifyCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    async def identify(self, credential: Credential, timeout: float) -> Identity:
        """Return the caller's identity. Raises auth's rejection, or Unavailable after `timeout` seconds."""
        if self._watch.is_all_unreachable:
            return self._fallback.identify(credential)
        return (await self._ask(credential, timeout)).identity

    async def delegate(self, credential: Credential, timeout: float) -> bytes:
        """Return a proof of auth that requests may run for the caller later. Raises as `identify`."""
        if delegation := (await self._ask(credential, timeout, delegates=True)).delegation:
            return delegation
        raise Unavailable("auth issues no delegation now; retry in 1 s", reason="AUTH_LOST", retry_after=1.0)

    async def _ask(self, credential: Credential, timeout: float, *, delegates: bool = False) -> Identified:
        if len(self._calls) >= self._max_calls:
            raise Overloaded("this edge identifies too many callers at present", reason="EDGE_FULL", retry_after=1.0)
        call = IdentifyCall(new_id(), credential, asyncio.get_running_loop().create_future(), delegates)
        self._calls[call.request_id] = call
        self._send(call)
        try:
            async with asyncio.timeout(timeout):
                identified = await call.response
        except TimeoutError:
            raise Unavailable("auth does not answer; retry in 1 s", reason="AUTH_LOST", retry_after=1.0) from None
        except PenstockError as error:
            self._fallback.invalidate_identity(error, credential)
            raise
        finally:
            del self._calls[call.request_id]
        return identified

    def on_identified(self, identified: Identified) -> None:
        call = self._open_call(identified.request_id)
        if call is None:
            return
        if refusal := self._fallback.refusal(identified.identity):
            call.response.set_exception(refusal)
            return
        # Now and not when the call goes on, so that a later frame of auth may remove it.
        self._fallback.cache_identified(call.credential, identified.identity)
        call.response.set_result(identified)

    def on_rejected(self, request_id: str, error: PenstockError) -> bool:
        """Return whether the rejected request is an open `identify`."""
        call = self._open_call(request_id)
        if call:
            call.response.set_exception(error)
        return call is not None

    def on_lost(self, address: str) -> None:
        """A replica is lost, and with it the frames that it received."""
        for call in self._calls.values():
            if call.address == address:
                call.address = ""
        self.move()

    def move(self) -> None:
        """Send the frames of replicas that are lost or silent to another one. Decide them if no replica responds."""
        is_all_unreachable = self._watch.is_all_unreachable
        for call in list(self._calls.values()):
            if call.response.done():
                continue
            if is_all_unreachable:
                self._decide(call)
            elif not self._watch.is_responsive(call.address):
                self._send(call)

    def _send(self, call: IdentifyCall) -> None:
        if not (address := self._streams.any_replica(call.request_id)):
            return
        self._watch.on_request_moved(call.address, call.request_id)
        self._watch.on_request_sent(address, call.request_id)
        question = Identify(request_id=call.request_id, credential=call.credential, delegates=call.delegates)
        frame = AdmitRequest(identify=question)
        call.address = address if self._streams.send(address, frame) else ""

    def _decide(self, call: IdentifyCall) -> None:
        try:
            call.response.set_result(Identified(identity=self._fallback.identify(call.credential)))
        except Unavailable as error:
            call.response.set_exception(error)

    def _open_call(self, request_id: str) -> IdentifyCall | None:
        call = self._calls.get(request_id)
        return None if call is None or call.response.done() else call
