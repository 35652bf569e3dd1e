"""Client side of a session with an edge, frame by frame."""

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager

from edge_mesh import KEY, hello
from penstock.chassis.streams.link import Link
from penstock.v1.inference_pb2 import GenerateRequest, SessionCancel, SessionGenerate, SessionRequest, SessionResponse


class SessionClient:
    """Client side of a session, with the received output by handle."""

    def __init__(self, link):
        self.link = link
        self.texts = defaultdict(str)
        self.ids = defaultdict(list)
        self.logprobs = defaultdict(list)
        self.steps = 0
        self.frames = asyncio.Queue()

    def on_frame(self, frame):
        kind = frame.WhichOneof("frame")
        if kind != "step":
            self.frames.put_nowait((kind, getattr(frame, kind)))
            return
        step, at = frame.step, 0
        self.steps += 1
        for handle, text, first, count in zip(step.handles, step.texts, step.first_indexes, step.counts, strict=True):
            assert first == len(self.ids[handle])
            self.texts[handle] += text
            self.ids[handle] += step.token_ids[at : at + count]
            self.logprobs[handle] += step.logprobs[at : at + count]
            at += count
        assert at == len(step.token_ids)

    def generate(self, handle, text="hi", **fields):
        request = GenerateRequest(text=text, **fields)
        self.link.send(SessionRequest(generate=SessionGenerate(handle=handle, request=request)))

    def cancel(self, handle):
        self.link.send(SessionRequest(cancel=SessionCancel(handle=handle)))

    async def next_frame(self, kind):
        """Return the next frame of `kind`, ignoring others."""
        while True:
            got, value = await self.frames.get()
            if got == kind:
                return value


@asynccontextmanager
async def session(mesh, metadata=KEY):
    up = asyncio.Event()
    client = SessionClient(None)
    link = client.link = Link[SessionRequest, SessionResponse](
        "session",
        lambda: mesh.inference.Session(metadata=metadata),
        SessionRequest,
        hello("client", "c1"),
        on_frame=client.on_frame,
        on_up=lambda _: up.set(),
        on_down=lambda reason: client.frames.put_nowait(("down", reason)),
    )
    running = asyncio.create_task(link.run())
    await up.wait()
    try:
        yield client
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
