"""Client of workers: one stream to each worker, with runs by handle and one frame per engine step for all of them."""

import asyncio

from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.link import Link
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.upstreams import frames
from penstock.edge.upstreams.runs import RunStream, StreamRunHandle
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, ExecuteResponse
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.stream_pb2 import Hello

WorkerStream = Link[ExecuteRequest, ExecuteResponse]


class WorkerConnection(RunStream):
    """Stream to one worker. Leases wait until it is connected; the time to live of a lease bounds that wait."""

    def __init__(
        self, address: str, hello: Hello, runner: EffectRunner, *, worker_id: str = "", dialer: Dialer = PLAINTEXT
    ) -> None:
        super().__init__(runner)
        self.address = address
        self._worker_id = worker_id
        self._dialer = dialer
        self._hello = hello
        self._unsent_leases: dict[int, Lease] = {}
        self._is_draining = False
        self._link: WorkerStream | None = None
        self.last_used_at = runner.now()

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_up

    async def run(self) -> None:
        async with self._dialer.channel(self.address, "worker", self._worker_id) as to_worker:
            self._link = WorkerStream(
                f"worker {self.address}",
                lambda: WorkerServiceStub(to_worker).Execute(),
                ExecuteRequest,
                self._hello,
                on_frame=self._on_frame,
                on_up=lambda _: self._on_up(),
                on_down=lambda _: self._on_down(),
                check_hello=self._dialer.hello_check("worker", self._worker_id),
            )
            await self._link.run()

    def start(self, context: RequestContext, lease: Lease) -> None:
        handle = self._add(context)
        self._unsent_leases[handle] = lease
        context.run = StreamRunHandle(self, handle)
        if self.is_up:
            self._send_start(handle)

    def cancel(self, handle: int) -> None:
        if self._link:
            self._link.send(frames.cancel(handle))

    def _remove(self, handle: int) -> None:
        self._unsent_leases.pop(handle, None)
        if self._contexts.pop(handle, None):
            self.last_used_at = self._runner.now()

    def _send_start(self, handle: int) -> None:
        context, lease = self._contexts[handle], self._unsent_leases[handle]
        if self._link and self._link.send(frames.start(context, handle, lease, self._runner.now())):
            del self._unsent_leases[handle]
            self._runner.apply(context, context.request.on_run_started())

    def _on_up(self) -> None:
        self._is_draining = False
        for handle in list(self._unsent_leases):
            self._send_start(handle)

    def _on_down(self) -> None:
        """Report started runs as lost. Leases that were not sent wait for the stream to reconnect."""
        now = self._runner.now()
        for handle, context in list(self._contexts.items()):
            if handle not in self._unsent_leases:
                self._remove(handle)
                self._runner.apply(context, context.request.on_worker_lost(now, died=not self._is_draining))

    def _on_frame(self, frame: ExecuteResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "end":
            self._is_draining = True
        else:
            self._on_run_frame(kind, frame)


SWEEPS_PER_IDLE_TIMEOUT = 4  # checks for idle streams per `idle_timeout`


class WorkerClient:
    """Opens a stream at the first lease of a worker, and closes it after `idle_timeout` seconds without a run.

    With certificates, the worker that a lease names is the only one that its stream connects to.
    """

    def __init__(self, hello: Hello, runner: EffectRunner, *, idle_timeout: float, dialer: Dialer = PLAINTEXT) -> None:
        self._dialer = dialer
        self._hello = hello
        self._runner = runner
        self._idle_timeout = idle_timeout  # s
        self._connections: dict[tuple[str, str], WorkerConnection] = {}  # by address and name of the worker
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def links_up(self) -> int:
        return sum(link.is_up for link in self._connections.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            while True:
                await asyncio.sleep(self._idle_timeout / SWEEPS_PER_IDLE_TIMEOUT)
                self._close_idle()

    def start(self, context: RequestContext, lease: Lease) -> None:
        key = self._dialer.key(lease.worker_address, "worker", lease.worker_id)
        if key not in self._connections:
            self._open(key, lease)
        self._connections[key].start(context, lease)

    def _open(self, key: tuple[str, str], lease: Lease) -> None:
        assert self._group is not None, "a lease arrived before the worker client ran"
        address = lease.worker_address
        self._connections[key] = WorkerConnection(
            address, self._hello, self._runner, worker_id=lease.worker_id, dialer=self._dialer
        )
        self._tasks[key] = self._group.create_task(self._connections[key].run(), name=f"worker {address}")

    def _close_idle(self) -> None:
        now = self._runner.now()
        for key, link in list(self._connections.items()):
            if not link.runs and now - link.last_used_at > self._idle_timeout:
                del self._connections[key]
                self._tasks.pop(key).cancel()
