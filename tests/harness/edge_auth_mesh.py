"""Real edges, a real auth that can stop, stall and restart, and a scripted queue and worker."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from edge_mesh import FakeQueue, FakeWorker, hello, served
from free_ports import free_port
from operators import admin_socket
from penstock.auth.config import AuthConfig
from penstock.auth.identity.identity_keys import IdentityKeyRing
from penstock.auth.models.routes import RouteList
from penstock.auth.service import AdmissionService
from penstock.auth.store.opening import opened_store
from penstock.auth.store.recovery import edges_to_expect, recover
from penstock.chassis.channels import channel
from penstock.edge.__main__ import edge
from penstock.edge.config import EdgeConfig
from penstock.mesh.v1.admission_pb2_grpc import add_AdmissionServiceServicer_to_server
from penstock.mesh.v1.queue_pb2_grpc import add_QueueServiceServicer_to_server
from penstock.mesh.v1.worker_pb2_grpc import add_WorkerServiceServicer_to_server
from penstock.v1.admin_pb2 import GetSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub

KEY = "pk_dev_" + "0123456789abcdef" * 2
SECRETS = {"dev_key": KEY, "pepper": "p" * 32, "mesh_secret": "m" * 32}
START_UNIX_S = 1_800_000_000.0


class PausableAdmission(AdmissionService):
    """Sends no response while `is_paused`, like a stalled process. `resume` handles the frames received since then."""

    def __init__(self, *given, **more):
        super().__init__(*given, **more)
        self.is_paused = False
        self.is_closed = False  # rejects new streams
        self.disconnected_edges = set()  # edges whose frames no longer reach auth
        self._held_frames = []

    def _on_frame(self, peer, edge_id, frame):
        if edge_id in self.disconnected_edges:
            return
        if self.is_paused:
            self._held_frames.append((peer, edge_id, frame))
        else:
            super()._on_frame(peer, edge_id, frame)

    async def Admit(self, request_iterator, context):
        if self.is_closed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining")
        await super().Admit(request_iterator, context)

    def drop_frames_of_disconnected(self):
        """Drop the held frames of disconnected edges, as if they had not been received."""
        self._held_frames = [each for each in self._held_frames if each[1] not in self.disconnected_edges]

    def resume(self):
        self.is_paused = False
        while self._held_frames:
            super()._on_frame(*self._held_frames.pop(0))


@dataclass
class RestartableAuth:
    """Auth at one address and one file over several processes."""

    path: Path
    settings: dict
    now: float = START_UNIX_S
    port: int = field(default_factory=free_port)
    service: PausableAdmission | None = None
    authorizer: object = None
    identity_keys: IdentityKeyRing | None = None
    routes: RouteList | None = None
    _running: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, *, without_key=""):
        config = AuthConfig(listen="127.0.0.1:0", store=str(self.path), **SECRETS, **self.settings)
        store, kept = await self._running.enter_async_context(opened_store(config.store))
        self.authorizer = recover(config, kept, self.now)
        if without_key:
            self.authorizer.keys.remove(without_key)
        edges = edges_to_expect(config, self.authorizer, self.now)
        self.identity_keys = IdentityKeyRing(self.now)
        given = self.authorizer, edges, store, hello("auth", "auth-1"), lambda: self.now
        self.routes = RouteList(kept.routes)
        self.service = PausableAdmission(*given, identity_keys=self.identity_keys, routes=self.routes)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_AdmissionServiceServicer_to_server(self.service, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        self._running.push_async_callback(server.stop, 0)

    async def stop(self):
        await self._running.aclose()

    def expire_edge(self, edge_id: str) -> None:
        """Expire the grace of a disconnected edge."""
        self.service._expire_edge(edge_id, self.now)  # the sweep that auth runs by its clock

    def ledger_rows(self) -> list[tuple]:
        """Return the ledger of a stopped auth: prompt tokens, output tokens, outcome."""
        with closing(sqlite3.connect(self.path)) as file:
            return file.execute("SELECT prompt_tokens, output_tokens, outcome FROM ledger ORDER BY outcome").fetchall()


@dataclass
class EdgeAuthMesh:
    auth: RestartableAuth
    queue: FakeQueue
    workers: list[FakeWorker]
    addresses: list[str]
    admin_addresses: list[str]
    edge_stacks: list[AsyncExitStack]  # of each edge; closing one drains it

    @property
    def holding_edge(self) -> int:
        """Number of the one edge that holds a reservation."""
        [name] = self.auth.authorizer.reservations.edges_with_reservations
        return int(name.removeprefix("edge-")) - 1

    async def figures(self, number=0) -> dict[str, float]:
        async with channel(self.admin_addresses[number]) as to_edge:
            return dict((await AdminStub(to_edge).GetSnapshot(GetSnapshotRequest())).snapshot.figures)

    async def wait_for_figure(self, name, value, number=0) -> None:
        """Wait until a figure of an edge equals `value`."""
        async with asyncio.timeout(20), channel(self.admin_addresses[number]) as to_edge:
            admin = AdminStub(to_edge)
            while (await admin.GetSnapshot(GetSnapshotRequest())).snapshot.figures[name] != value:
                pass

    async def wait_settled(self) -> list[tuple]:
        """Wait until no reservation is left, stop auth, and return its ledger."""
        async with asyncio.timeout(20):
            while self.auth.authorizer.reservations.reservation_count:  # noqa: ASYNC110  # a figure can only be polled
                await asyncio.sleep(0)
        await self.auth.stop()
        return self.auth.ledger_rows()


@asynccontextmanager
async def edge_auth_mesh(path, edges=1, auth=None, **settings) -> AsyncIterator[EdgeAuthMesh]:
    async with AsyncExitStack() as stack:
        books = RestartableAuth(path / "auth.sqlite", auth or {})
        await books.start()
        stack.push_async_callback(books.stop)
        worker = FakeWorker("w1", embedding_size=4)
        worker.address = await stack.enter_async_context(served(add_WorkerServiceServicer_to_server, worker))
        queue = FakeQueue([worker])
        at = await stack.enter_async_context(served(add_QueueServiceServicer_to_server, queue))
        servers, leave = [], []
        for number in range(edges):
            own = {"listen": "127.0.0.1:0", "auths": (books.address,), "queues": (at,), "drain_grace": 0.0}
            own["admin_listen"] = stack.enter_context(admin_socket())
            life = await stack.enter_async_context(AsyncExitStack())
            config = EdgeConfig(**own, instance_id=f"edge-{number + 1}", **settings)
            servers.append(await life.enter_async_context(edge(config)))
            leave.append(life)
        addresses, admin_addresses = [each.address for each in servers], [each.admin_address for each in servers]
        yield EdgeAuthMesh(books, queue, [worker], addresses, admin_addresses, leave)
