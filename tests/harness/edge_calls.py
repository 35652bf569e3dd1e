"""Calls to an edge as a caller makes them, and what is read of their answers."""

import grpc
import pytest

from penstock.chassis.errors import error_from_rpc


async def read_answer(call):
    """Whole answer: accepted, text, ids, finished; indexes must be contiguous."""
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
    """The first `count` tokens of an answer that goes no further for now."""
    ids = []
    while len(ids) < count:
        ids += (await call.read()).delta.token_ids
    return ids


async def wait_rejecting(mesh):
    """Return once the edge takes no new calls."""
    while True:
        try:
            await mesh.figures()
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
