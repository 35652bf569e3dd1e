"""A batch process as an edge sees it: one stream that starts lines and records what the edge answers."""

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import orjson

from edge_mesh import TIMEOUT_S, hello
from penstock.chassis.channels import channel
from penstock.chassis.streams.link import Link
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.mesh.v1.batch_pb2_grpc import LineServiceStub
from penstock.v1.inference_pb2 import PRIORITY_BATCH

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class LineClient:
    """Starts lines by number. `ended`, `running` and `progress` have what the edge has sent, by number."""

    def __init__(self):
        self.link = None
        self.ended = {}
        self.running = []
        self.progress = {}
        self.is_up, self.has_ended = asyncio.Event(), asyncio.Event()
        self.events = asyncio.Queue()

    def on_frame(self, frame):
        match frame.WhichOneof("frame"):
            case "ended":
                assert frame.ended.number not in self.ended, "a line ends once"
                self.ended[frame.ended.number] = frame.ended
            case "running":
                self.running.append(frame.running.number)
            case "progress":
                self.progress[frame.progress.number] = frame.progress.progress
            case "end":
                self.has_ended.set()
        self.events.put_nowait(frame)

    def start(self, number, body, *, endpoint=COMPLETIONS, delegation=b"good", line_id="", **fields):
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        line = pb.StartLine(
            number=number,
            line_id=line_id or f"{number:032x}",
            owner=pb.Owner(tenant_id="acme", key_id="key-1", delegation=delegation),
            endpoint=endpoint,
            body=content,
            timeout=timedelta(seconds=60),
            priority=PRIORITY_BATCH,
            **fields,
        )
        self.link.send(pb.RunRequest(start=line))

    def stop(self, number):
        self.link.send(pb.RunRequest(stop=pb.StopLine(number=number)))

    async def wait(self, is_reached):
        async with asyncio.timeout(TIMEOUT_S):
            while not is_reached():
                await self.events.get()

    async def end_of(self, number):
        await self.wait(lambda: number in self.ended)
        return self.ended[number]


@asynccontextmanager
async def line_client(address):
    async with channel(address) as to_edge:
        client = LineClient()
        link = client.link = Link(
            "edge",
            lambda: LineServiceStub(to_edge).Run(),
            pb.RunRequest,
            hello("batch", "b1"),
            on_frame=client.on_frame,
            on_up=lambda _: client.is_up.set(),
        )
        task = asyncio.create_task(link.run())
        async with asyncio.timeout(TIMEOUT_S):
            await client.is_up.wait()
        try:
            yield client
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
