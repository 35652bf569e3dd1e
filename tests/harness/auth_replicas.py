"""Scripted auth replicas on real gRPC servers, each of which owns partitions, and an edge that talks to all of them."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import grpc

from edge_mesh import TIMEOUT_S, EdgeMesh, edge_mesh, hello
from free_ports import free_port
from penstock.chassis.errors import Unauthenticated
from penstock.chassis.streams.link import accept_stream
from penstock.mesh.partitions import PARTITIONS, partition_of
from penstock.mesh.v1.admission_pb2 import (
    AdmitResponse,
    Admitted,
    Identified,
    Identity,
    NotOwner,
    OwnedPartitions,
    Rejected,
    Settled,
    StoreState,
)
from penstock.mesh.v1.admission_pb2_grpc import AdmissionServiceServicer, add_AdmissionServiceServicer_to_server
from penstock.v1.inference_pb2 import PRIORITY_STANDARD
from penstock.v1.stream_pb2 import End

LOW, HIGH = range(PARTITIONS // 2), range(PARTITIONS // 2, PARTITIONS)
HOUR_NANOS = 3_600 * 10**9


def tenant_in(partitions, number=0) -> str:
    """Return the name of a tenant in one of these partitions."""
    return [name for name in (f"tenant-{each}" for each in range(2_000)) if partition_of(name) in partitions][number]


def claims(partitions, epoch=1) -> dict[int, int]:
    return dict.fromkeys(partitions, epoch)


def bearer(tenant: str):
    return (("authorization", f"Bearer {tenant}"),)


@dataclass(eq=False)
class AuthReplica(AdmissionServiceServicer):
    """Admits tenants of its own partitions. A bearer is the name of the caller's tenant, unless `tenants` has it."""

    name: str
    epochs: dict[int, int] = field(default_factory=dict)  # by partition
    is_partitioned: bool = True
    tenants: dict[str, str] = field(default_factory=dict)  # by bearer
    ignored: set[str] = field(default_factory=set)  # kinds of frames that it does not answer
    grant_tokens: int = 1_000
    received: list[tuple[str, str]] = field(default_factory=list)  # kind and id of each reserve and settle, in order
    identified: list[str] = field(default_factory=list)  # bearers
    not_owners: int = 0
    streams: int = 0  # so far
    peers: set = field(default_factory=set)
    port: int = field(default_factory=free_port)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _running: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self):
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_AdmissionServiceServicer_to_server(self, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        self._running.push_async_callback(server.stop, 0)

    async def stop(self):
        """Stop as a killed process does: its streams are cut."""
        await self._running.aclose()

    async def Admit(self, request_iterator, context):
        greeting = hello("auth", self.name)
        greeting.partitioned = self.is_partitioned
        async with accept_stream(context, AdmitResponse, greeting) as peer:
            if self.is_partitioned:
                peer.send(self.owned_frame())
            self.peers.add(peer)
            self.streams += 1
            self._notify()
            try:
                async for frame in peer:
                    self._on_frame(peer, frame)
            finally:
                self.peers.discard(peer)

    def owned_frame(self):
        owned = OwnedPartitions(
            partitions=sorted(self.epochs), epochs=[self.epochs[each] for each in sorted(self.epochs)]
        )
        return AdmitResponse(owned_partitions=owned)

    def claim(self, epochs):
        """Own these partitions from now on, and say so."""
        self.epochs = epochs
        self.send(self.owned_frame())

    def set_store(self, *, is_unavailable):
        self.send(AdmitResponse(store_state=StoreState(is_unavailable=is_unavailable)))

    def end(self):
        self.send(AdmitResponse(end=End(reason="draining")))

    def send(self, frame):
        for peer in self.peers:
            peer.send(frame)

    def names(self, kind) -> list[str]:
        """Return the ids of the frames of a kind, in order."""
        return [name for each, name in self.received if each == kind]

    def count(self, kind) -> int:
        return len(self.names(kind))

    async def wait_for(self, kind, count=1):
        """Wait until this replica has received so many frames of a kind."""
        await self._wait(lambda: self.count(kind) >= count)

    async def wait_for_name(self, kind, name):
        await self._wait(lambda: name in self.names(kind))

    async def wait_for_streams(self, count):
        await self._wait(lambda: self.streams >= count)

    async def _wait(self, is_done):
        async with asyncio.timeout(TIMEOUT_S):
            while not is_done():
                self._changed.clear()
                await self._changed.wait()

    def _notify(self):
        self._changed.set()

    def _on_frame(self, peer, frame):
        kind = frame.WhichOneof("frame")
        if kind == "identify":
            self.identified.append(frame.identify.credential.bearer)
        else:
            deferred = kind == "reserve" and frame.reserve.HasField("fallback_admission")
            name = frame.settle.reservation_id if kind == "settle" else frame.reserve.request_id
            self.received.append(("deferred" if deferred else kind, name))
        self._notify()
        if kind not in self.ignored and (answer := getattr(self, f"_{kind}")(getattr(frame, kind))):
            peer.send(answer)

    def identity(self, name) -> Identity:
        tenant = self.tenants.get(name, name)
        return Identity(
            tenant_id=tenant, priority=PRIORITY_STANDARD, weight=1.0, cache_salt=b"s" * 16, key_id=f"key of {tenant}"
        )

    def _identify(self, frame):
        if not _named(frame.credential).startswith("tenant-"):
            error = Unauthenticated("no such key", reason="KEY_UNKNOWN")
            return AdmitResponse(rejected=Rejected(request_id=frame.request_id, failure=error.failure()))
        identified = Identified(request_id=frame.request_id, identity=self.identity(_named(frame.credential)))
        return AdmitResponse(identified=identified)

    def _reserve(self, frame):
        key = frame.fallback_admission.key_id.removeprefix("key of ")
        identity = self.identity(key or _named(frame.credential))
        if partition_of(identity.tenant_id) not in self.epochs:
            self.not_owners += 1
            return AdmitResponse(not_owner=NotOwner(request_id=frame.request_id, identity=identity))
        admitted = Admitted(
            request_id=frame.request_id,
            reservation_id=f"r-{frame.request_id}",
            identity=identity,
            fallback_tokens=self.grant_tokens,
            fallback_grant=b"grant",
            fallback_grant_time_left_nanos=HOUR_NANOS,
        )
        return AdmitResponse(admitted=admitted)

    def _settle(self, frame):
        assert frame.HasField("partition")
        if frame.partition not in self.epochs:
            self.not_owners += 1
            return AdmitResponse(not_owner=NotOwner(reservation_id=frame.reservation_id))
        return AdmitResponse(settled=Settled(reservation_id=frame.reservation_id))


def _named(credential) -> str:
    """Return the name that a caller, or a line of its batch, presents."""
    return credential.bearer or credential.delegation.decode()


@dataclass
class PartitionedMesh:
    mesh: EdgeMesh
    replicas: list[AuthReplica]

    async def answer(self, tenant, tokens=3) -> str:
        call = self.mesh.generate(metadata=bearer(tenant), max_output_tokens=tokens)
        return "".join([each.delta.text async for each in call])

    async def wait_for_figure(self, name, value):
        async with asyncio.timeout(TIMEOUT_S):
            while (await self.mesh.figures()).get(name, 0) != value:
                pass


@asynccontextmanager
async def partitioned_mesh(*epochs, **settings):
    """An edge with one replica for each map of epochs by partition; None: a replica of a former release."""
    async with AsyncExitStack() as stack:
        replicas = []
        for number, owned in enumerate(epochs, 1):
            replica = AuthReplica(
                f"auth-{number}", owned or claims(range(PARTITIONS)), is_partitioned=owned is not None
            )
            await replica.start()
            stack.push_async_callback(replica.stop)
            replicas.append(replica)
        settings = {"auths": tuple(each.address for each in replicas), **settings}
        mesh = await stack.enter_async_context(edge_mesh(**settings))
        found = PartitionedMesh(mesh, replicas)
        await found.wait_for_figure("auth_links_up", len(replicas))
        yield found
