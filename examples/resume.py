"""Continues an answer at another edge after its edge was lost: `python examples/resume.py HOST:PORT HOST:PORT ...`.

PENSTOCK_API_KEY has the key. The client keeps the token ids that it has received and the `answer_id` and seed of
`accepted`. Another edge continues after them with the same text, and each token is charged once. `penstock.client`
does this by itself; this example shows it with the bare stubs.
"""

import asyncio
import os
import sys

import grpc

from penstock.v1.inference_pb2 import Accepted, GenerateRequest, GenerateResponse
from penstock.v1.inference_pb2_grpc import InferenceStub

LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


async def main(targets: list[str]) -> None:
    request = GenerateRequest(text="Once upon a time", max_output_tokens=200, ignore_eos=True)
    for attempt, target in enumerate(targets, start=1):
        try:
            await read(target, request)
        except grpc.aio.AioRpcError as error:
            if error.code() not in LOST or attempt == len(targets):
                raise
            print(f"\n{target} was lost after {len(request.resume.token_ids)} tokens", flush=True)
        else:
            return


async def read(target: str, request: GenerateRequest) -> None:
    """Print an answer; `request` becomes the request for the rest of it."""
    metadata = [("authorization", f"Bearer {os.environ['PENSTOCK_API_KEY']}")]
    async with grpc.aio.insecure_channel(target) as channel:
        async for frame in InferenceStub(channel).Generate(request, metadata=metadata, timeout=60):
            apply(frame, request)


def apply(frame: GenerateResponse, request: GenerateRequest) -> None:
    match frame.WhichOneof("frame"):
        case "accepted":
            keep(frame.accepted, request)
        case "delta":
            request.resume.token_ids.extend(frame.delta.token_ids)
            print(frame.delta.text, end="", flush=True)
        case "finished":
            print(f"\n{len(request.resume.token_ids)} tokens")


def keep(accepted: Accepted, request: GenerateRequest) -> None:
    """Fix the edge's choices, so that the next edge makes the same ones."""
    request.model = accepted.model
    request.max_output_tokens = accepted.max_output_tokens
    request.sampling.seed = accepted.seed
    request.resume.answer_id = accepted.answer_id
    request.resume.model_version = accepted.model_version


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["127.0.0.1:7001", "127.0.0.1:7011"]))
