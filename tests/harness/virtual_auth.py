"""An edge's runner and scripted auth replicas on virtual time: a test moves the clock, and no second passes."""

import asyncio
import time

import grpc

from active_requests import generation_plan
from auth_replicas import AuthReplica
from penstock.chassis.clocks import WallMonotonicClock
from penstock.chassis.errors import PenstockError
from penstock.edge.config import EdgeConfig
from penstock.edge.explain.history import RequestHistory
from penstock.edge.lifecycle.active_request import ActiveRequest
from penstock.edge.lifecycle.context import RequestContext
from penstock.edge.lifecycle.observability.telemetry import RequestTelemetry
from penstock.edge.lifecycle.record import LifecycleLimits
from penstock.edge.lifecycle.sinks import ResponseStream
from penstock.edge.models.catalog import ModelCatalog
from penstock.edge.models.planner import RequestPlanner
from penstock.edge.request.spec import RequestSpec, TokenInput
from penstock.edge.runner import RequestRunner
from penstock.faults.grpc.fake_channel import FakeChannel
from penstock.faults.grpc.fake_server import FakeServer
from penstock.faults.grpc.network import Network
from penstock.faults.world.world import World
from penstock.mesh.v1.admission_pb2 import Credential
from penstock.v1.stream_pb2 import Hello

SPEC = RequestSpec(request_id="", model="tiny", input=TokenInput((1, 2, 3)))
START_S = 1.0  # s in which all streams connect
TIMEOUT_S = 600.0  # of requests


class VirtualAuthMesh:
    """The upstream clients of one edge, without queue and workers: an admitted request waits for a shard for ever."""

    def __init__(self, monkeypatch, *epochs, pools=None, **settings):
        self.world = World(1)
        network = self.network = Network(self.world, 1, late_share=0.0)
        monkeypatch.setattr(grpc.aio, "server", lambda **_: FakeServer(network, asyncio.get_running_loop(), ()))
        monkeypatch.setattr(
            "penstock.chassis.security.channels.Http2Channel",
            lambda at, *_, **__: FakeChannel(network, asyncio.get_running_loop(), at),
        )
        monkeypatch.setattr(time, "time", self.world.unix_time)
        monkeypatch.setattr(time, "monotonic", self.world.monotonic_time)
        self.replicas = []
        for number, owned in enumerate(epochs, 1):
            replica = AuthReplica(f"auth-{number}", owned, port=number)
            loop = replica.loop = self.world.add_loop(replica.name)
            with self.world.running_as(loop):
                replica.task = loop.create_task(replica.start())
            self.replicas.append(replica)
        self.world.settle()
        self.loop = self.world.add_loop("edge-1")
        config = EdgeConfig(auths=tuple(each.address for each in self.replicas), **settings)
        with self.world.running_as(self.loop):
            clock = WallMonotonicClock()
            catalog = ModelCatalog(clock, pools, wait_timeout=1.0)
            planner = RequestPlanner(catalog, pools, default_output_tokens=16)
            hello = Hello(protocol=1, instance_id="edge-1", tier="edge")
            self.runner = RequestRunner(config, hello, catalog, planner, clock)
            self.running = self.loop.create_task(self.runner.run())
        self.pass_by(START_S)

    def pass_by(self, seconds):
        self.world.run(lambda: False, limit=self.world.now + seconds)

    def kill(self, replica):
        self.world.halt(replica.loop)
        self.network.on_process_died(replica.loop)

    def claim(self, replica, epochs):
        with self.world.running_as(replica.loop):
            replica.claim(epochs)

    def call(self, work):
        """Run a coroutine at the edge. Its task is returned."""
        with self.world.running_as(self.loop):
            return self.loop.create_task(work)

    def request(self, tenant, ticket_id, *, is_delegated=False) -> "VirtualRequest":
        """Send a request as the edge does: its caller is identified first."""
        request = VirtualRequest(self, tenant, ticket_id, is_delegated=is_delegated)
        request.task = self.call(request.run())
        self.world.settle()
        return request


class VirtualRequest:
    """One request, whose state tells whether it is admitted."""

    def __init__(self, mesh, tenant, ticket_id, *, is_delegated=False):
        self.mesh = mesh
        self.runner = mesh.runner
        self.credential = Credential(delegation=tenant.encode()) if is_delegated else Credential(bearer=tenant)
        self.ticket_id = ticket_id
        self.context = None

    async def run(self):
        runner, now = self.runner, self.runner.now()
        limits = LifecycleLimits(upstream_timeout=30.0)
        request = ActiveRequest(self.ticket_id, arrived_at=now, deadline=now + TIMEOUT_S, limits=limits)
        self.context = RequestContext(
            request=request,
            request_id=self.ticket_id,
            spec=SPEC,
            credential=self.credential,
            sink=ResponseStream(runner.requests.memory),
            telemetry=RequestTelemetry(SPEC, self.ticket_id, "", history=RequestHistory()),
            size_bytes=1,
        )
        runner.add(self.context)
        try:
            request.identity = await runner.auth.authenticate(self.credential, 30.0)
        except PenstockError as error:
            runner.fail(self.context, error)
            return
        runner.apply(self.context, request.on_tokenized(generation_plan(), runner.now()))

    def cancel(self):
        """End the request, which is settled if it is admitted."""
        with self.mesh.world.running_as(self.mesh.loop):
            self.runner.cancel(self.context)

    @property
    def state(self) -> str:
        return str(self.context.request.state)

    @property
    def error(self) -> str:
        """Return the reason of the error that the client has received. Empty without one."""
        ending = self.context.sink._ending
        return ending.reason if isinstance(ending, PenstockError) else ""
