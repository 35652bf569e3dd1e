"""ResponseStoreService: passes calls of edges to the store, and their results back. No policy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, TypeAlias

from penstock.auth.store.responses.store import CALL_TIMEOUT_S, TIMEOUT_INTERVAL_S, ResponseStore
from penstock.chassis.streams.link import Peer, accept_stream
from penstock.mesh.v1.responses_pb2 import KeepRequest, KeepResponse, StoreResult
from penstock.mesh.v1.responses_pb2_grpc import ResponseStoreServiceServicer
from penstock.v1.stream_pb2 import End, Hello

DRAIN_TIMEOUT_S = CALL_TIMEOUT_S + TIMEOUT_INTERVAL_S  # s; by then each call has a result
DRAIN_INTERVAL_S = 0.01  # s between looks whether calls are open

EdgePeer: TypeAlias = Peer[KeepResponse, KeepRequest]


class ResponseService(ResponseStoreServiceServicer):
    """The streams of all edges."""

    def __init__(self, store: ResponseStore, hello: Hello) -> None:
        self._store = store
        self._hello = hello
        self._peers: dict[EdgePeer, None] = {}  # in order of connection

    @property
    def figures(self) -> dict[str, float]:
        return {"response_streams": len(self._peers), **self._store.figures}

    async def Keep(  # type: ignore[override]  # reads and writes on its context, and yields nothing
        self, request_iterator: AsyncIterator[KeepRequest], context: Any
    ) -> None:
        async with accept_stream(context, KeepResponse, self._hello, tiers=("edge",)) as peer:
            self._peers[peer] = None
            try:
                async for frame in peer:
                    if frame.WhichOneof("frame") == "call":
                        self._perform(peer, frame)
            finally:
                del self._peers[peer]

    def _perform(self, peer: EdgePeer, frame: KeepRequest) -> None:
        def on_result(result: StoreResult) -> None:
            peer.send(KeepResponse(result=result))

        self._store.perform(frame.call, peer, on_result)

    async def drain(self) -> None:
        """Send `end` to every edge after the results of all open calls."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while self._store.pending:  # noqa: ASYNC110  # once per process; an event would cost each call
                    await asyncio.sleep(DRAIN_INTERVAL_S)
        for peer in self._peers:
            peer.send(KeepResponse(end=End(reason="draining")))
