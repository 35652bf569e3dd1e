"""A server with scripted Inference handlers in the chassis of a real process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from penstock.chassis.server.server import Server, serving
from penstock.v1.inference_pb2_grpc import InferenceServicer, InferenceStub, add_InferenceServicer_to_server


def scripted_servicer(**methods: Any) -> InferenceServicer:
    """A servicer with `methods` as its handlers, each taking (request or iterator, context)."""
    bound = {name: staticmethod(method) for name, method in methods.items()}
    return type("Scripted", (InferenceServicer,), bound)()


@asynccontextmanager
async def inference_server(**methods: Any) -> AsyncIterator[tuple[InferenceStub, Server]]:
    """A stub of a real server on a free port that runs `methods`."""
    async with (
        serving(
            "127.0.0.1:0", [(add_InferenceServicer_to_server, scripted_servicer(**methods))], drain_grace=5.0
        ) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        yield InferenceStub(channel), server


@asynccontextmanager
async def inference_at(address: str, **methods: Any) -> AsyncIterator[Server]:
    """Serve `methods` at an address that was found free."""
    async with serving(address, [(add_InferenceServicer_to_server, scripted_servicer(**methods))]) as server:
        yield server
