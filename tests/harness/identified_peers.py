"""An admission service behind certificates, and a link to it, for tests of identities."""

import asyncio
from contextlib import asynccontextmanager

from penstock.chassis.security.identity import peer_identity
from penstock.chassis.server.server import serving
from penstock.chassis.streams.link import Link, accept_stream
from penstock.mesh.v1.admission_pb2 import AdmitRequest, AdmitResponse
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceServicer
from penstock.mesh.v1.admission_pb2_grpc import add_AdmissionServiceServicer_to_server as add_admission
from penstock.v1.stream_pb2 import Hello

TIMEOUT_S = 20.0


class Echo(AdmissionServiceServicer):
    """Accepts edges and remembers their identities."""

    def __init__(self):
        self.peers = []
        self.hello = Hello(protocol=1, instance_id="auth-1", tier="auth")

    async def Admit(self, request_iterator, context):
        async with accept_stream(context, AdmitResponse, self.hello, tiers=("edge",)) as peer:
            self.peers.append(peer_identity(context))
            async for _ in peer:
                pass


@asynccontextmanager
async def echo_server(security):
    echo = Echo()
    async with serving("127.0.0.1:0", [(add_admission, echo)], drain_grace=0.1, security=security) as server:
        yield echo, server.address


class Ends:
    """A link with events of its state."""

    def __init__(self, call, hello, check=None):
        self.events = asyncio.Queue()
        self.link = Link(
            "auth",
            call,
            AdmitRequest,
            hello,
            on_frame=lambda _: None,
            on_up=lambda hello: self.events.put_nowait(("up", hello.instance_id)),
            on_down=lambda reason: self.events.put_nowait(("down", reason)),
            check_hello=check,
        )

    async def next(self):
        async with asyncio.timeout(TIMEOUT_S):
            return await self.events.get()


def edge_hello(**fields):
    return Hello(**{"protocol": 1, "instance_id": "edge-1", "tier": "edge", **fields})
