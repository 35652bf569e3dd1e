"""A real worker with its engine in a process, between a fake scheduler and edges that the test drives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta

import grpc
import psutil
from google.protobuf.duration_pb2 import Duration

from operators import admin_socket
from penstock.chassis.channels import CHANNEL_OPTIONS, channel
from penstock.chassis.lifecycle import request_stop
from penstock.chassis.streams.link import Link, accept_stream
from penstock.chassis.streams.protocol import HIGHEST_VERSION
from penstock.local_mesh.plan import FIGURES_ZERO_AT_REST
from penstock.mesh.model_key import model_key
from penstock.mesh.v1.scheduler_pb2 import AttachResponse, DrainWorker, Expect, Revoke
from penstock.mesh.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import Cancel, ExecuteRequest, GetModelCardRequest, Start
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.admin_pb2 import GetSnapshotRequest, WatchSnapshotRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import Sampling
from penstock.v1.stream_pb2 import Hello
from penstock.worker.__main__ import run
from penstock.worker.config import DType, EngineKind, WorkerConfig

TIMEOUT_S = 60.0  # bound of every wait


class FakeScheduler(SchedulerServiceServicer):
    """Announces the leases that the test names and records all frames of workers."""

    def __init__(self):
        self.profiles = asyncio.Queue()
        self.lease_events = asyncio.Queue()  # started and released, in order
        self.ended_streams = asyncio.Queue()  # of each stream: whether it ended on purpose
        self.reports = asyncio.Queue()
        self.leases_by_number = {}
        self.served = {}  # by lease: all reports, in order
        self.cached_blocks = set()  # short hashes of the blocks in the worker's prefix cache
        self.poison_reports = asyncio.Queue()  # reports of poison broadcasts: is_confirmed by fingerprint
        self.worker = Hello()
        self.peer = None

    async def Attach(self, request_iterator, context):
        async with accept_stream(
            context, AttachResponse, Hello(protocol=HIGHEST_VERSION, instance_id="s1", tier="scheduler")
        ) as peer:
            is_broadcast = False
            try:
                async for frame in peer:
                    is_broadcast |= frame.HasField("poison_update") and peer is not self.peer
                    if frame.HasField("profile"):
                        self.peer, self.worker = peer, peer.hello
                    self.on_frame(frame)
            finally:
                (self.poison_reports if is_broadcast else self.ended_streams).put_nowait(peer.has_peer_ended)

    def on_frame(self, frame):
        kind = frame.WhichOneof("frame")
        if kind == "load_report":
            self.reports.put_nowait(frame.load_report)
        elif kind == "profile":
            self.profiles.put_nowait(frame.profile)
        elif kind == "poison_update":
            reports = frame.poison_update.reports
            self.poison_reports.put_nowait({report.fingerprint: report.is_confirmed for report in reports})
        elif kind == "started":
            self.lease_events.put_nowait(("started", frame.started.lease_id))
        elif kind == "released":
            self.record_served(frame.released.served)
            for lease_id in frame.released.lease_ids:
                self.lease_events.put_nowait(("released", lease_id))
        elif kind == "progress":
            self.record_served(frame.progress.leases)
            self.record_output(frame.progress)
        elif kind == "prefix_cache_update":
            update = frame.prefix_cache_update
            kept = set() if update.is_snapshot else self.cached_blocks - set(update.removed)
            self.cached_blocks = kept | set(update.added)

    def record_output(self, progress):
        for number, output_tokens in zip(progress.lease_numbers, progress.output_tokens, strict=True):
            history = self.served[self.leases_by_number[number]]
            history.append((history[-1][0], output_tokens))

    def record_served(self, leases):
        self.leases_by_number |= {each.number: each.lease_id for each in leases if each.number}
        for each in leases:
            self.served.setdefault(each.lease_id, []).append((each.prompt_tokens, each.output_tokens))

    async def reports_until(self, is_so):
        """Reports received since the last call, up to the first for which `is_so` holds."""
        reports = []
        async with asyncio.timeout(TIMEOUT_S):
            while not (reports and is_so(reports[-1])):
                reports.append(await self.reports.get())
        return reports

    def expect(self, lease_id, *, ttl=10.0):
        length = Duration()
        length.FromTimedelta(timedelta(seconds=ttl))
        lease = Lease(lease_id=lease_id, ticket_id=f"ticket {lease_id}", worker_id=self.worker.instance_id, ttl=length)
        self.peer.send(AttachResponse(expect=Expect(lease=lease)))

    def revoke(self, lease_id):
        self.peer.send(AttachResponse(revoke=Revoke(lease_id=lease_id)))

    def drain(self):
        self.peer.send(AttachResponse(drain=DrainWorker()))

    async def wait_profile(self, running):
        """Return the next profile; raise the worker's own error if it ends without one."""
        profile = asyncio.ensure_future(self.profiles.get())
        await asyncio.wait([profile, running], timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not profile.done():
            profile.cancel()
            await running
        return await profile

    async def next_lease_event(self):
        async with asyncio.timeout(TIMEOUT_S):
            return await self.lease_events.get()


@asynccontextmanager
async def fake_scheduler() -> AsyncIterator[tuple[FakeScheduler, str]]:
    scheduler = FakeScheduler()
    server = grpc.aio.server()
    add_SchedulerServiceServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield scheduler, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class WorkerEdge:
    """One edge's stream: `frames` has all received frames, in order; `down` the reason of each loss of the stream."""

    def __init__(self, to_worker):
        self.model = ""  # key of the worker's model
        self.frames = asyncio.Queue()
        self.up, self.down = asyncio.Queue(), asyncio.Queue()
        hello = Hello(protocol=HIGHEST_VERSION, instance_id="edge-1", tier="edge")
        self.link = Link(
            "worker",
            lambda: WorkerServiceStub(to_worker).Execute(),
            ExecuteRequest,
            hello,
            on_frame=self.frames.put_nowait,
            on_up=self.up.put_nowait,
            on_down=self.down.put_nowait,
        )

    def start(self, handle, lease_id=None, *, prompt=(5, 6, 7), tokens=4, **more):
        lease_id = lease_id or f"lease {handle}"
        start = Start(
            handle=handle,
            lease_id=lease_id,
            ticket_id=f"ticket {lease_id}",
            token_ids=prompt,
            max_output_tokens=tokens,
            **{"model": self.model, "ignore_eos": True, "sampling": Sampling(temperature=0.0, seed=1), **more},
        )
        assert self.link.send(ExecuteRequest(start=start))

    def cancel(self, handle):
        assert self.link.send(ExecuteRequest(cancel=Cancel(handle=handle)))

    async def next_frame(self):
        async with asyncio.timeout(TIMEOUT_S):
            return await self.frames.get()

    async def read_answers(self, *handles):
        """All frames until each of `handles` has ended: tokens by handle in order of arrival, and the last frames."""
        tokens, ends = {handle: [] for handle in handles}, {}
        while set(handles) - set(ends):
            frame = await self.next_frame()
            kind = frame.WhichOneof("frame")
            if kind == "step":
                for handle, token, index in zip(
                    frame.step.handles, frame.step.token_ids, frame.step.indexes, strict=True
                ):
                    tokens[handle].append((index, token))
            else:
                end = getattr(frame, kind)
                ends[end.handle] = end
        return tokens, ends

    async def wait_first_token(self, handle):
        while True:
            frame = await self.next_frame()
            if handle in frame.step.handles:
                return frame

    async def read_to_end(self, handle):
        return (await self.read_answers(handle))[1][handle]


@asynccontextmanager
async def connected_edge(address, *options) -> AsyncIterator[WorkerEdge]:
    """An edge after its handshake; `options` are its channel's own."""
    async with grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS, *options]) as to_worker:
        edge = WorkerEdge(to_worker)
        running = asyncio.create_task(edge.link.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await edge.up.get()
                edge.model = await served_model(WorkerServiceStub(to_worker))
            yield edge
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def served_model(stub):
    """Key of the worker's model; empty while it loads."""
    with suppress(grpc.aio.AioRpcError):
        card = (await stub.GetModelCard(GetModelCardRequest())).card
        return model_key(card.name, card.digest)
    return ""


class RunningWorker:
    """A worker that runs in this loop, seen from outside: by its RPCs and its processes."""

    def __init__(self, scheduler, profile, to_worker, to_admin, *, running, address):
        self.address = address
        self.scheduler = scheduler
        self.profile = profile
        self.running = running
        self.stub = WorkerServiceStub(to_worker)
        self._admin = AdminStub(to_admin)

    async def figures(self):
        return dict((await self._admin.GetSnapshot(GetSnapshotRequest())).snapshot.figures)

    async def wait_for_figures(self, is_so):
        """Return the first figures for which `is_so` holds."""
        interval = Duration(nanos=100_000_000)
        async with asyncio.timeout(TIMEOUT_S):
            async for response in self._admin.WatchSnapshot(WatchSnapshotRequest(interval=interval)):
                figures = dict(response.snapshot.figures)
                if is_so(figures):
                    return figures
        raise AssertionError("the worker ended the watch")

    async def wait_at_rest(self):
        """Return the figures once no state of a request remains."""
        return await self.wait_for_figures(
            lambda figures: not any(figures[name] for name in FIGURES_ZERO_AT_REST["worker"])
        )


def engine_processes():
    return [each for each in psutil.Process().children() if "penstock.worker.engine_host.child" in _command_of(each)]


def _command_of(process):
    with suppress(psutil.NoSuchProcess):  # or a zombie that its parent has not reaped
        return " ".join(process.cmdline())
    return ""


def worker_config(model, schedulers, **more):
    kinds = {"engine": EngineKind(more.pop("engine", "sim")), "dtype": DType(more.pop("dtype", "auto"))}
    base = {**kinds, "listen": "127.0.0.1:0", "kv_blocks": 64, "slots": 8, "token_budget": 64, "drain_grace": 20.0}
    return WorkerConfig(
        instance_id="worker-1",
        schedulers=tuple(schedulers),
        model=str(model),
        threads=1,
        **{**base, **more},
    )


@asynccontextmanager
async def running_worker(model, *, first=None, **more) -> AsyncIterator[RunningWorker]:
    """A worker, attached and ready. The block's end drains it, and none of its processes may be left.

    `first` is a scheduler and its address; the worker lists it before its own.
    """
    async with fake_scheduler() as (scheduler, address), AsyncExitStack() as stack:
        attached_to, first_address = first or (scheduler, address)
        admin = stack.enter_context(admin_socket())
        config = worker_config(model, dict.fromkeys((first_address, address)), **{"admin_listen": admin, **more})
        running = asyncio.create_task(run(config))
        try:
            profile = await attached_to.wait_profile(running)
            async with channel(attached_to.worker.address) as to_worker, channel(admin) as to_admin:
                yield RunningWorker(
                    scheduler, profile, to_worker, to_admin, running=running, address=attached_to.worker.address
                )
        finally:
            request_stop("the test is over", 0.0)
            await running
        assert engine_processes() == []
