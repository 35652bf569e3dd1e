"""An edge that runs lines of batches as the test says, and callers of a process of the batch tier."""

import asyncio
from contextlib import asynccontextmanager

from penstock.chassis.channels import channel
from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import accept_stream
from penstock.chassis.streams.protocol import hello_of
from penstock.mesh.v1 import batch_pb2 as mesh
from penstock.mesh.v1.batch_pb2_grpc import (
    BatchServiceStub,
    LineServiceServicer,
    add_LineServiceServicer_to_server,
)
from penstock.v1 import batches_pb2 as pb

TIMEOUT_S = 60.0  # bound of every wait
OWNER = mesh.Owner(tenant_id="acme", key_id="k", delegation=b"d")


class LineEdge(LineServiceServicer):
    """Runs each line, and answers it at once if `is_answering`. `started` has the lines as they arrive."""

    def __init__(self, name="edge-1"):
        self.hello = hello_of("edge", name)
        self.address = ""
        self.is_answering = True
        self.started = []
        self.running = {}  # lines that are not answered, by number
        self.stopped = 0
        self.peer = None  # the present stream

    async def Run(self, request_iterator, context):
        async with accept_stream(context, mesh.RunResponse, self.hello, tiers=("batch",)) as peer:
            self.peer = peer
            self.running.clear()  # lines of a stream that was cut have ended
            async for frame in peer:
                match frame.WhichOneof("frame"):
                    case "start":
                        self.started.append(frame.start)
                        self.running[frame.start.number] = frame.start
                        peer.send(mesh.RunResponse(running=mesh.LineRunning(number=frame.start.number)))
                        if self.is_answering:
                            self.answer_all()
                    case "stop":
                        self.stopped += 1
                        self.end(frame.stop.number, mesh.LINE_VERDICT_LATER)

    def answer_all(self):
        """Answer the lines that run."""
        for number in list(self.running):
            self.answer(number)

    def answer(self, number):
        self.end(number, mesh.LINE_VERDICT_ANSWERED, status=200, body=b"{}")

    def end(self, number, verdict, **fields):
        self.running.pop(number, None)
        ended = mesh.LineEnded(number=number, verdict=verdict, input_tokens=1, output_tokens=1, **fields)
        self.peer.send(mesh.RunResponse(ended=ended))


@asynccontextmanager
async def line_edge(name="edge-1"):
    edge = LineEdge(name)
    async with serving("127.0.0.1:0", [(add_LineServiceServicer_to_server, edge)], drain_grace=0.0) as server:
        edge.address = edge.hello.address = server.address
        yield edge


class BatchCaller:
    """An edge that calls a process of the batch tier for the tenant `acme`."""

    def __init__(self, to_batch):
        self.stub = BatchServiceStub(to_batch)

    async def upload(self, content):
        header = pb.UploadHeader(filename="a.jsonl", purpose=pb.FILE_PURPOSE_BATCH)
        call = self.stub.UploadFile()
        await call.write(mesh.UploadFileRequest(owner=OWNER, request=pb.UploadFileRequest(header=header)))
        await call.write(mesh.UploadFileRequest(request=pb.UploadFileRequest(content=content)))
        await call.write(mesh.UploadFileRequest(is_complete=True))
        return (await call.read()).file

    async def create(self, file_id, endpoint):
        request = pb.CreateBatchRequest(input_file_id=file_id, endpoint=endpoint)
        return (await self.stub.Call(mesh.CallRequest(owner=OWNER, create_batch=request))).batch

    async def find(self, batch_id):
        request = pb.GetBatchRequest(batch_id=batch_id)
        return (await self.stub.Call(mesh.CallRequest(owner=OWNER, get_batch=request))).batch

    async def read(self, file_id):
        call = self.stub.ReadFile()
        await call.write(mesh.ReadFileRequest(owner=OWNER, request=pb.ReadFileRequest(file_id=file_id)))
        await call.done_writing()
        return b"".join([each.content async for each in call])

    async def wait(self, batch_id, status):
        """Return the batch once it has a status."""
        async with asyncio.timeout(TIMEOUT_S):
            while (batch := await self.find(batch_id)).status != status:  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.05)
        return batch


@asynccontextmanager
async def batch_caller(address):
    async with channel(address) as to_batch:
        yield BatchCaller(to_batch)
