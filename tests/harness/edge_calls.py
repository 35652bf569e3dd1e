"""Calls to an edge and readers of their responses."""

import grpc
import pytest

from edge_mesh import KEY
from penstock.chassis.errors import error_from_rpc
from penstock.v1.inference_pb2 import ListModelsRequest


async def read_answer(call):
    """Return the whole answer: accepted, text, ids, finished. Indexes must be contiguous."""
    accepted, text, ids, finished, first = None, "", [], None, None
    while (frame := await call.read()) is not grpc.aio.EOF:
        kind = frame.WhichOneof("frame")
        if kind == "accepted":
            accepted = frame.accepted
        elif kind == "delta":
            first = frame.delta.first_index if first is None else first
            assert frame.delta.first_index == first + len(ids)
            text += frame.delta.text
            ids += frame.delta.token_ids
        else:
            finished = frame.finished
    return accepted, text, ids, finished


async def read_tokens(call, count):
    """Return the first `count` tokens of an answer that is then paused."""
    ids = []
    while len(ids) < count:
        ids += (await call.read()).delta.token_ids
    return ids


async def wait_rejecting(mesh):
    """Wait until the edge rejects new calls."""
    while True:
        try:
            await mesh.inference.ListModels(ListModelsRequest(), metadata=KEY)
        except grpc.aio.AioRpcError:
            return


async def rejected_call(call):
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await read_answer(call)
    return error_from_rpc(failure.value)


async def wait_at_rest(mesh):
    figures = await mesh.figures()
    while figures["active_requests"] or figures["reservations_open"]:
        figures = await mesh.figures()
    assert not mesh.auth.open_reservations
    return figures
