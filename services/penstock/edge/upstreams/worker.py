"""Client of workers: one stream to each worker, with runs by handle and one frame per engine step for all of them."""

import asyncio
from collections.abc import Callable

from penstock.chassis.errors import error_from_failure
from penstock.chassis.security.channels import PLAINTEXT, Dialer
from penstock.chassis.streams.endpoint import FrameOutOfRange
from penstock.chassis.streams.link import Link
from penstock.edge.lifecycle.context import EffectRunner, RequestContext
from penstock.edge.lifecycle.effects import Effect, Emit
from penstock.edge.lifecycle.output import LikeliestTokens
from penstock.edge.upstreams import frames
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, ExecuteResponse, Step
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.stream_pb2 import Hello

WorkerStream = Link[ExecuteRequest, ExecuteResponse]


class WorkerRunHandle:
    """Handle of one run on a worker's stream."""

    def __init__(self, link: "WorkerConnection", handle: int) -> None:
        self._link = link
        self._handle = handle

    def cancel(self) -> None:
        self._link.cancel(self._handle)

    def discard(self) -> None:
        self._link.discard(self._handle)


class WorkerConnection:
    """Stream to one worker. Leases wait until it is connected; the time to live of a lease bounds that wait."""

    def __init__(
        self, address: str, hello: Hello, runner: EffectRunner, *, worker_id: str = "", dialer: Dialer = PLAINTEXT
    ) -> None:
        self.address = address
        self._worker_id = worker_id
        self._dialer = dialer
        self._hello = hello
        self._runner = runner
        self._contexts: dict[int, RequestContext] = {}
        self._unsent_leases: dict[int, Lease] = {}
        self._last_handle = 0
        self._is_draining = False
        self._link: WorkerStream | None = None
        self.last_used_at = runner.now()

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_up

    @property
    def runs(self) -> int:
        return len(self._contexts)

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
        self._last_handle += 1
        handle = self._last_handle
        self._contexts[handle] = context
        self._unsent_leases[handle] = lease
        context.run = WorkerRunHandle(self, handle)
        if self.is_up:
            self._send_start(handle)

    def cancel(self, handle: int) -> None:
        if self._link:
            self._link.send(frames.cancel(handle))

    def discard(self, handle: int) -> None:
        """Ignore further frames about a run."""
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
                self.discard(handle)
                self._runner.apply(context, context.request.on_worker_lost(now, died=not self._is_draining))

    def _on_frame(self, frame: ExecuteResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "step":
            self._on_step(frame.step)
        elif kind == "finished":
            finished = frame.finished
            self._on_run_over(
                finished.handle,
                lambda context, now: context.request.on_run_finished(
                    finished.reason,
                    finished.output_tokens,
                    finished.cached_prompt_tokens,
                    finished.times,
                    now,
                    embedding=finished.embedding,
                ),
            )
        elif kind == "cancelled":
            cancelled = frame.cancelled
            self._on_run_over(
                cancelled.handle,
                lambda context, now: context.request.on_run_stopped(
                    cancelled.output_tokens, cancelled.kv_blocks_freed, cancelled.times, now
                ),
            )
        elif kind == "failed":
            error, never_ran = error_from_failure(frame.failed.failure), frame.failed.never_ran
            self._on_run_over(
                frame.failed.handle,
                lambda context, now: context.request.on_run_rejected(error, now, never_ran=never_ran),
            )
        elif kind == "end":
            self._is_draining = True

    def _on_step(self, step: Step) -> None:
        now, runs, runner, logprobs = self._runner.now(), self._contexts, self._runner, step.logprobs
        likeliest = _likeliest_of(step) if step.top_token_ids else None
        try:
            for at, (handle, token_id, index) in enumerate(
                zip(step.handles, step.token_ids, step.indexes, strict=True)
            ):
                context = runs.get(handle)
                if context is not None:
                    logprob = logprobs[at] if logprobs and context.spec.logprobs else None
                    top = likeliest[at] if likeliest else None
                    effects = context.request.on_token(index, token_id, logprob, now, top)
                    if isinstance(effects, Emit):
                        runner.emit(context, effects)
                    else:
                        runner.apply(context, effects)
        except (ValueError, IndexError):
            _check_lengths(step)  # only now, because a check in advance would cost as much as the token
            raise

    def _on_run_over(self, handle: int, end: Callable[[RequestContext, float], list[Effect]]) -> None:
        context = self._contexts.get(handle)
        if context is not None:
            self.discard(handle)
            self._runner.apply(context, end(context, self._runner.now()))


def _likeliest_of(step: Step) -> list[LikeliestTokens]:
    """Return the likeliest tokens of each token of a step. Raises FrameOutOfRange if they do not divide equally."""
    ids, logprobs, tokens = step.top_token_ids, step.top_logprobs, len(step.token_ids)
    if not tokens or len(ids) % tokens or len(ids) != len(logprobs):
        text = f"Step.top_token_ids and top_logprobs have {len(ids)} and {len(logprobs)} entries for {tokens} tokens"
        raise FrameOutOfRange(f"{text}; allowed: equally many for each token", field="top_token_ids")
    count = len(ids) // tokens
    return [(ids[start : start + count], logprobs[start : start + count]) for start in range(0, len(ids), count)]


def _check_lengths(step: Step) -> None:
    """Raise FrameOutOfRange if the arrays of a step are not parallel."""
    lengths = len(step.handles), len(step.token_ids), len(step.indexes), len(step.logprobs) or len(step.handles)
    if len(set(lengths)) > 1:
        text = f"Step.handles, token_ids, indexes and logprobs are of {lengths} entries; allowed: as many of each"
        raise FrameOutOfRange(text, field="handles")


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
