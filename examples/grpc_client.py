"""Streams an answer with the bare gRPC stubs: `python examples/grpc_client.py [HOST:PORT]`.

PENSTOCK_API_KEY has the key. The stubs are generated from protos/penstock/v1/inference.proto; any language has them.
"""

import asyncio
import os
import sys

import grpc

from penstock.v1.inference_pb2 import GenerateRequest, Sampling
from penstock.v1.inference_pb2_grpc import InferenceStub

TARGET = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7001"


async def main() -> None:
    request = GenerateRequest(text="Once upon a time", max_output_tokens=64, sampling=Sampling(temperature=0))
    metadata = [("authorization", f"Bearer {os.environ['PENSTOCK_API_KEY']}")]
    async with grpc.aio.insecure_channel(TARGET) as channel:
        async for frame in InferenceStub(channel).Generate(request, metadata=metadata, timeout=60):
            kind = frame.WhichOneof("frame")
            if kind == "delta":
                print(frame.delta.text, end="", flush=True)
            elif kind == "finished":
                print(f"\n{frame.finished.usage.output_tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
