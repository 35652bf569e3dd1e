"""Client of the store of responses: one stream to each replica of auth, any of which serves any response."""

import asyncio
from collections.abc import Sequence
from itertools import count

from penstock.chassis.channels import PeerSet
from penstock.chassis.errors import Unavailable, error_from_failure
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.mesh.v1.responses_pb2 import KeepRequest, KeepResponse, StoreCall, StoreResult
from penstock.mesh.v1.responses_pb2_grpc import ResponseStoreServiceStub
from penstock.v1.stream_pb2 import Hello

CALL_TIMEOUT_S = 5.0  # longer than auth waits for its database
RETRY_AFTER_S = 1.0

StoreStream = Link[KeepRequest, KeepResponse]


class ResponseStoreClient:
    """Calls operations of the store. A call fails with its stream, because auth may have performed it or not."""

    def __init__(self, addresses: Sequence[str], hello: Hello, *, dialer: Dialer = PLAINTEXT) -> None:
        self._hello = hello
        self._dialer = dialer
        self._peers = PeerSet(addresses, self._open)
        self._links: dict[str, StoreStream] = {}  # those that are connected
        self._calls: dict[int, tuple[str, asyncio.Future[StoreResult]]] = {}  # by id, with the address
        self._ids = count(1)

    @property
    def links_up(self) -> int:
        return len(self._links)

    async def run(self) -> None:
        await self._peers.run()

    async def call(self, call: StoreCall) -> StoreResult:
        """Perform one operation. Raises its failure, and Unavailable / STORE_UNAVAILABLE if no replica answers."""
        call.call_id = next(self._ids)
        addresses = list(self._links)
        address = addresses[call.call_id % len(addresses)] if addresses else ""
        if not address or not self._links[address].send(KeepRequest(call=call)):
            raise _unavailable("auth is not connected")
        answer: asyncio.Future[StoreResult] = asyncio.get_running_loop().create_future()
        self._calls[call.call_id] = address, answer
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                result = await answer
        except TimeoutError:
            raise _unavailable(f"auth has not answered in {CALL_TIMEOUT_S:g} s") from None
        finally:
            del self._calls[call.call_id]
        if result.HasField("failure"):
            raise error_from_failure(result.failure)
        return result

    async def _open(self, address: str) -> None:
        async with self._dialer.channel(address, "auth") as to_auth:
            link = StoreStream(
                f"responses {address}",
                lambda: ResponseStoreServiceStub(to_auth).Keep(),
                KeepRequest,
                self._hello,
                on_frame=lambda frame: self._receive(address, frame),
                on_up=lambda _: self._links.update({address: link}),
                on_down=lambda reason: self._lose(address, reason),
                check_hello=self._dialer.hello_check("auth"),
            )
            await link.run()

    def _receive(self, address: str, frame: KeepResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "end":
            self._links.pop(address, None)  # open calls are answered before the stream closes
        elif kind == "result" and frame.result.call_id in self._calls:
            _, answer = self._calls[frame.result.call_id]
            if not answer.done():
                answer.set_result(frame.result)

    def _lose(self, address: str, reason: str) -> None:
        self._links.pop(address, None)
        for asked, answer in self._calls.values():
            if asked == address and not answer.done():
                answer.set_exception(_unavailable(f"the stream to auth was closed ({reason})"))


def _unavailable(why: str) -> Unavailable:
    text = f"the store of responses cannot be reached: {why}; retry in {RETRY_AFTER_S:g} s"
    return Unavailable(text, reason="STORE_UNAVAILABLE", retry_after=RETRY_AFTER_S)
