"""Runner: claims chunks, sends their lines to edges, and commits what comes back."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import structlog

from penstock.batch.jobs.chunks import ChunkState, ChunkStore, LineResult
from penstock.batch.metrics import record_commit
from penstock.batch.runner.edges import EdgeLinks
from penstock.batch.runner.held import HeldChunks, RunnableLine, retry_delay_of
from penstock.batch.window.window import LineWindow
from penstock.batch.work_signal import LOOK_INTERVAL_S
from penstock.chassis.errors import PenstockError
from penstock.mesh.v1 import batch_pb2 as pb

log = structlog.get_logger()

LEASE_S = 10.0
RENEW_INTERVAL_S = 0.5  # below `MAX_UNCONFIRMED_S`: a renewal also tells whether a batch was cancelled
CLAIM_INTERVAL_S = 0.25  # after a claim that found chunks; further ones follow as lines start
TICK_S = 0.05
COMMIT_INTERVAL_S = 0.1
COMMIT_RETRY_S = 1.0  # after a commit that failed
MAX_COMMITTED = 512  # results of one change
MAX_COMMITTED_BYTES = 4 << 20  # of their rows, beyond the first one
MAX_CLAIMED = 4  # chunks at one time
SPARE_LINES = 256  # that wait here beyond the window, so that a commit or a claim delays none
AWAY_GRACE_S = 3.0  # after a failure of the store without a claim, so that all replicas renew their leases first
STOP_TIMEOUT_S = 5.0  # at a drain, for lines that were stopped
RETURNED_FIGURES = {pb.LINE_VERDICT_LATER: "lines_deferred", pb.LINE_VERDICT_LOST: "lines_lost"}


class BatchRunner:
    """Holds chunks, as many as their lines fill the window. Without one, it waits for the signal of the store."""

    def __init__(self, replica: str, store: ChunkStore, edges: EdgeLinks) -> None:
        self._replica = replica
        self._store = store
        self._edges = edges
        self._held = HeldChunks()
        self._window = LineWindow()
        self._results: list[LineResult] = []
        self._claiming = asyncio.Lock()  # of `run` and `drain`, which gives back what a claim has begun to take
        self._committing = asyncio.Lock()  # of `run` and `drain`, which would take the same results
        self._claims_at = 0.0  # s; not before that
        self._has_work = asyncio.Event()  # it holds chunks, or has results that are not committed
        self._is_draining = False
        edges.on_running, edges.on_progress, edges.on_ended = self._on_running, self._on_progress, self._on_ended
        edges.on_lost, edges.on_up = self._on_edge_lost, self._on_edge_up
        self.answered = self.failed = 0
        self.can_commit = True  # whether the latest commit succeeded
        self._refused = 0  # results
        self._returned: Counter[str] = Counter()  # lines that start again, by figure

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the admin snapshot."""
        return {
            "chunks_held": len(self._held),
            "lines_waiting": self._held.waiting,
            "lines_queued": self._window.waiting,
            "lines_running": self._window.running,
            "lines_answered": self.answered,
            "lines_failed": self.failed,
            "results_refused": self._refused,
            **{name: self._returned[name] for name in ("lines_deferred", "lines_lost", "lines_of_lost_edges")},
            "edges": self._edges.links_up,
        }

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Run lines until cancelled. `drain` gives the chunks back."""
        async with asyncio.TaskGroup() as group:
            for work in (self._claim, self._renew, self._commit, self._tick):
                group.create_task(work())

    async def drain(self) -> None:
        """Stop all lines, commit what has ended, and give the chunks to other replicas."""
        self._is_draining = True
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                async with self._claiming:
                    for chunk in self._held:
                        self._stop(self._held.stop(chunk.key, is_lost=False))
                while self._held.in_mesh or self._results:
                    await self._commit_once()
                    await asyncio.sleep(TICK_S)
                await self._release_over()
        except (TimeoutError, PenstockError) as error:
            log.warning("chunks_not_released", chunks=len(self._held), error=str(error))

    # Loops.

    async def _claim(self) -> None:
        delay = 0.0
        while True:
            await self._store.chunks_due.wait(delay)
            delay = CLAIM_INTERVAL_S if self._edges.links_up else LOOK_INTERVAL_S
            if not self._edges.links_up or self._held.waiting >= SPARE_LINES or self._now < self._claims_at:
                continue
            try:
                async with self._claiming:
                    delay = await self._claim_once()
            except PenstockError as error:
                self._on_store_away("chunks_not_claimed", error)
            self._send_lines()

    async def _claim_once(self) -> float:
        """Return the time until the next claim, in s."""
        if self._is_draining:
            return LOOK_INTERVAL_S
        claimed_at = self._now
        claim = await self._store.claim(self._replica, MAX_CLAIMED, LEASE_S)
        for chunk in claim.chunks:
            lines = await self._store.read_lines(chunk)
            self._stop(self._held.stop(chunk.key, is_lost=True))  # an earlier lease, which has ended
            self._add_results(self._held.add(chunk, lines, claimed_at))
            self._has_work.set()
        return CLAIM_INTERVAL_S if claim.chunks else min(LOOK_INTERVAL_S, max(TICK_S, claim.next_lease_s))

    async def _renew(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(RENEW_INTERVAL_S)
            chunks = [each for each in self._held if not each.is_lost]
            if not chunks:
                continue
            asked_at = self._now
            try:
                states = await self._store.renew([(each.key, each.claimed.epoch) for each in chunks], LEASE_S)
            except PenstockError as error:
                self._on_store_away("chunks_not_renewed", error, chunks=len(chunks))
                continue
            for chunk, state in zip(chunks, states, strict=True):
                if state is ChunkState.HELD:
                    chunk.confirmed_at = asked_at
                elif not chunk.is_stopped:
                    self._stop(self._held.stop(chunk.key, is_lost=state is ChunkState.LOST))

    async def _commit(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(COMMIT_INTERVAL_S)
            try:
                await self._commit_once()
                await self._release_over()
                self.can_commit = True
                if not (self._held or self._results):
                    self._has_work.clear()
            except PenstockError as error:
                self.can_commit = False
                self._on_store_away("results_not_committed", error, results=len(self._results))
                await asyncio.sleep(COMMIT_RETRY_S)

    async def _tick(self) -> None:
        while True:
            await self._has_work.wait()
            await asyncio.sleep(TICK_S)
            self._send_lines()

    async def _commit_once(self) -> None:
        async with self._committing:
            while self._results:
                group = self._next_group()
                began_at = time.monotonic()
                stored = await self._store.put_results(group)
                record_commit(time.monotonic() - began_at)
                del self._results[: len(group)]
                self._held.on_committed(group)
                for each, is_new in zip(group, stored, strict=True):
                    self.answered += is_new and not each.is_error
                    self.failed += is_new and each.is_error
                    self._refused += not is_new

    def _next_group(self) -> list[LineResult]:
        group: list[LineResult] = []
        size = 0
        for each in self._results[:MAX_COMMITTED]:
            size += len(each.row)
            if group and size > MAX_COMMITTED_BYTES:
                break
            group.append(each)
        return group

    async def _release_over(self) -> None:
        over = self._held.remove_over()
        if given := [(each.key, each.claimed.epoch) for each in over if not each.is_lost]:
            await self._store.release(given)

    def _on_store_away(self, event: str, error: PenstockError, **figures: int) -> None:
        if self._now >= self._claims_at:  # else it is away already
            log.warning(event, error=error.message, **figures)
        self._claims_at = self._now + AWAY_GRACE_S

    # Lines.

    def _send_lines(self) -> None:
        now = self._now
        for _ in range(0 if self._is_draining else self._window.room(now)):
            edge = self._edges.next_edge()
            line = self._held.next_line(edge, now) if edge else None
            if line is None:
                return
            self._window.on_sent()
            if not self._edges.start(line, now):
                return  # the loss of the edge takes the line back

    def _stop(self, lines: Sequence[RunnableLine]) -> None:
        for line in lines:
            self._edges.stop(line)

    def _add_results(self, results: Sequence[LineResult]) -> None:
        self._results += results

    # Of edges.

    def _on_running(self, edge: str, handle: int) -> None:
        line = self._held.find(handle, edge)
        if line and not line.is_running:
            line.is_running = True
            self._window.on_running(self._now)
            self._send_lines()

    def _on_progress(self, edge: str, handle: int, progress: bytes) -> None:
        if line := self._held.find(handle, edge):
            line.progress = progress

    def _on_ended(self, edge: str, ended: pb.LineEnded) -> None:
        line, now = self._held.find(ended.number, edge), self._now
        if line is None:
            return
        was_running = line.is_running
        if figure := RETURNED_FIGURES.get(ended.verdict):
            self._returned[figure] += 1
        self._window.on_ended(was_running=was_running)
        results = self._held.on_ended(line, ended, now)
        if ended.verdict == pb.LINE_VERDICT_LATER and not was_running:
            self._window.on_shed(retry_delay_of(ended), now)
        self._add_results(results)
        self._send_lines()

    def _on_edge_up(self) -> None:
        self._store.chunks_due.set()
        self._send_lines()

    def _on_edge_lost(self, edge: str) -> None:
        lines, results = self._held.on_edge_lost(edge, self._now)
        self._returned["lines_of_lost_edges"] += len(lines)
        for line in lines:
            self._window.on_ended(was_running=line.is_running)
        self._add_results(results)
        self._send_lines()
