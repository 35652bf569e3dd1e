"""The edge's session with one worker: runs by handle, one frame per engine step for all of them."""

from collections.abc import Callable

from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_failure
from penstock.chassis.streams import Link
from penstock.edge.flight.effects import Effect
from penstock.edge.links import frames
from penstock.edge.passage import Control, Passage
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.mesh.v1.worker_pb2 import ExecuteRequest, ExecuteResponse, Step
from penstock.mesh.v1.worker_pb2_grpc import WorkerServiceStub
from penstock.v1.stream_pb2 import Hello

WorkerStream = Link[ExecuteRequest, ExecuteResponse]


class HandledRun:
    """One run of one flight on this stream."""

    def __init__(self, link: "WorkerLink", handle: int) -> None:
        self._link = link
        self._handle = handle

    def cancel(self) -> None:
        self._link.cancel(self._handle)

    def forget(self) -> None:
        self._link.forget(self._handle)


class WorkerLink:
    """Starts wait here for the stream to come up; whoever gave the lease bounds that wait by its ttl."""

    def __init__(self, address: str, hello: Hello, control: Control) -> None:
        self.address = address
        self._hello = hello
        self._control = control
        self._runs: dict[int, Passage] = {}
        self._unsent: dict[int, Lease] = {}
        self._last_handle = 0
        self._is_draining = False
        self._link: WorkerStream | None = None
        self.used_at = control.now()

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_up

    @property
    def runs(self) -> int:
        return len(self._runs)

    async def run(self) -> None:
        async with channel(self.address) as to_worker:
            self._link = WorkerStream(
                f"worker {self.address}",
                lambda: WorkerServiceStub(to_worker).Execute(),
                ExecuteRequest,
                self._hello,
                on_frame=self._on_frame,
                on_up=lambda _: self._on_up(),
                on_down=lambda _: self._on_down(),
            )
            await self._link.run()

    def start(self, passage: Passage, lease: Lease) -> None:
        self._last_handle += 1
        handle = self._last_handle
        self._runs[handle] = passage
        self._unsent[handle] = lease
        passage.run = HandledRun(self, handle)
        if self.is_up:
            self._send_start(handle)

    def cancel(self, handle: int) -> None:
        if self._link:
            self._link.send(frames.cancel(handle))

    def forget(self, handle: int) -> None:
        """Ignore what is still said of a run."""
        self._unsent.pop(handle, None)
        if self._runs.pop(handle, None):
            self.used_at = self._control.now()

    def _send_start(self, handle: int) -> None:
        passage, lease = self._runs[handle], self._unsent[handle]
        if self._link and self._link.send(frames.start(passage, handle, lease)):
            del self._unsent[handle]
            self._control.apply(passage, passage.flight.started())

    def _on_up(self) -> None:
        self._is_draining = False
        for handle in list(self._unsent):
            self._send_start(handle)

    def _on_down(self) -> None:
        """Lose what was started; what was not waits for the stream to come back within its lease."""
        now = self._control.now()
        for handle, passage in list(self._runs.items()):
            if handle not in self._unsent:
                self.forget(handle)
                self._control.apply(passage, passage.flight.worker_lost(now, died=not self._is_draining))

    def _on_frame(self, frame: ExecuteResponse) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "step":
            self._on_step(frame.step)
        elif kind == "finished":
            finished = frame.finished
            self._over(
                finished.handle,
                lambda passage, now: passage.flight.run_finished(
                    finished.reason, finished.output_tokens, finished.cached_prompt_tokens, finished.times, now
                ),
            )
        elif kind == "stopped":
            stopped = frame.stopped
            self._over(
                stopped.handle,
                lambda passage, now: passage.flight.stopped(
                    stopped.tokens_emitted, stopped.kv_blocks_freed, stopped.times, now
                ),
            )
        elif kind == "refused":
            error, never_ran = error_from_failure(frame.refused.failure), frame.refused.never_ran
            self._over(
                frame.refused.handle,
                lambda passage, now: passage.flight.run_refused(error, now, never_ran=never_ran),
            )
        elif kind == "end":
            self._is_draining = True

    def _on_step(self, step: Step) -> None:
        now, runs, apply, logprobs = self._control.now(), self._runs, self._control.apply, step.logprobs
        for at, (handle, token_id, index) in enumerate(zip(step.handles, step.token_ids, step.indexes, strict=True)):
            passage = runs.get(handle)
            if passage is not None:
                logprob = logprobs[at] if logprobs and passage.spec.logprobs else None
                apply(passage, passage.flight.token(index, token_id, logprob, now))

    def _over(self, handle: int, end: Callable[[Passage, float], list[Effect]]) -> None:
        passage = self._runs.get(handle)
        if passage is not None:
            self.forget(handle)
            self._control.apply(passage, end(passage, self._control.now()))
