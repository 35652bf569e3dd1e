"""Simulated batch replica: the runner's chunks, turns and window, over batches in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import orjson

from penstock.batch.jobs.batch import Batch
from penstock.batch.jobs.chunks import ChunkKey, ClaimedChunk, Line, LineResult
from penstock.batch.jobs.claims import RunningBatch, shares
from penstock.batch.jobs.division import CHUNK_LINES
from penstock.batch.jobs.urgency import class_of_lines
from penstock.batch.runner.held import HeldChunks, RunnableLine, retry_delay_of
from penstock.batch.runner.runner import CLAIM_INTERVAL_S, MAX_CLAIMED, SPARE_LINES, TICK_S
from penstock.batch.window.window import LineWindow
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.scenario import Scenario, SimTenant
from penstock.simulator.traffic.backlog import Backlog
from penstock.simulator.traffic.demand import OfferedRequest

EDGE = "edge"
ENDPOINT = "/v1/completions"


class SimLine(NamedTuple):
    """One run of a line, as the replica starts it at an edge."""

    number: int  # names the run in later frames
    line_id: str  # the same in each run
    tenant: SimTenant
    offered: OfferedRequest
    deadline: float  # s; end of the batch's window
    priority: int  # class of its ticket


class ReplicaPeers(Protocol):
    """The edge of a replica, which receives each frame after the link delay."""

    def start_line(self, line: SimLine) -> None: ...

    def stop_line(self, line_id: str) -> None: ...


@dataclass(slots=True, eq=False)
class SimBatch:
    """One batch, whose lines are generated chunk by chunk."""

    tenant: SimTenant
    facts: Batch
    lines: Iterator[tuple[int, OfferedRequest]]
    left: int  # lines that no chunk has held yet
    expected_end: float = 0.0  # s, as forecast when the scenario's duration had passed; 0: unknown

    @property
    def has_chunks(self) -> bool:
        """Whether chunks of it may be claimed."""
        return self.facts.may_run and self.left > 0

    @property
    def is_in_time(self) -> bool:
        """Whether its end, or its forecast end, is within its window."""
        end = self.facts.ended_at or self.expected_end
        return not self.facts.expired and 0 < end <= self.facts.expires_at


class SimBatchReplica:
    """The only replica of the batch tier, and its store. It starts no line after the scenario's duration."""

    def __init__(self, scenario: Scenario, events: SimEventQueue, peers: ReplicaPeers) -> None:
        self.batches: list[SimBatch] = []
        self._events = events
        self._peers = peers
        self._seed = scenario.seed
        self._held = HeldChunks()
        self._window = LineWindow()
        self._claimed_at = 0.0
        self._is_closed = False
        backlogs = [(tenant, tenant.backlog) for tenant in scenario.tenants if tenant.backlog]
        self._unborn = len(backlogs)
        for tenant, backlog in backlogs:
            events.schedule(backlog.at, self._create, tenant, backlog)
        if backlogs:
            events.schedule(TICK_S, self._tick)
            events.schedule(scenario.duration, self._close)

    @property
    def has_work(self) -> bool:
        """Whether lines may start."""
        return not self._is_closed and bool(self._unborn or any(each.facts.may_run for each in self.batches))

    # Timers.

    def _create(self, tenant: SimTenant, backlog: Backlog) -> None:
        facts = Batch(
            batch_id=f"batch_{tenant.name}",
            tenant_id=tenant.name,
            key_id=tenant.name,
            delegation=b"",
            endpoint=ENDPOINT,
            input_file_id="",
            window=backlog.window,
            output_ttl=0.0,
            created_at=self._events.now,
        )
        facts.start(backlog.lines, self._events.now)
        lines = enumerate(backlog.requests(f"{self._seed}/{tenant.name}", 1.0))
        self.batches.append(SimBatch(tenant, facts, lines, backlog.lines))
        self._unborn -= 1

    def _tick(self) -> None:
        now = self._events.now
        for each in self.batches:
            if each.facts.lapse(now):
                each.facts.finish(now, "", "")
                self._stop(each)
        for chunk in self._held:
            chunk.confirmed_at = now  # its store is never away
        if self._held.waiting < SPARE_LINES and now >= self._claimed_at + CLAIM_INTERVAL_S:
            self._claim()
        self._send_lines()
        if self.has_work:
            self._events.schedule(now + TICK_S, self._tick)

    def _close(self) -> None:
        self._is_closed = True
        for each in self.batches:
            each.expected_end = each.facts.expected_end(self._events.now)

    # Chunks.

    def _claim(self) -> None:
        """Hold further chunks of the batches that `shares` names, as the store does."""
        self._claimed_at = self._events.now
        running = [self._running(number, each) for number, each in enumerate(self.batches) if each.has_chunks]
        for number, count in shares(running, MAX_CLAIMED).items():
            for _ in range(count):
                if self.batches[number].has_chunks:
                    self._hold_next(self.batches[number])

    def _running(self, number: int, batch: SimBatch) -> RunningBatch:
        now, facts = self._events.now, batch.facts
        done = facts.completed + facts.failed
        pace = done / (now - facts.started_at) if now > facts.started_at else 0.0
        held = sum(each.key.batch_id == facts.batch_id for each in self._held)
        return RunningBatch(number, facts.tenant_id, facts.lines - done, facts.expires_at - now, pace, held)

    def _hold_next(self, batch: SimBatch) -> None:
        facts, now = batch.facts, self._events.now
        lines = [Line(number, _content(number, request)) for number, request in islice(batch.lines, CHUNK_LINES)]
        batch.left -= len(lines)
        key, whose = ChunkKey(facts.batch_id, lines[0].number), (facts.tenant_id, facts.key_id, facts.delegation)
        end, left, priority = facts.expires_at, facts.expires_at - now, class_of_lines(facts, now)
        self._held.add(ClaimedChunk(key, 1, len(lines), *whose, ENDPOINT, end, left, priority), lines, now)

    def _stop(self, batch: SimBatch) -> None:
        for chunk in self._held:
            if chunk.key.batch_id == batch.facts.batch_id:
                for line in self._held.stop(chunk.key, is_lost=False):
                    self._peers.stop_line(line.line_id)

    def _commit(self, results: Sequence[LineResult]) -> None:
        for each in results:
            facts = self._batch_of(each.key.batch_id).facts
            facts.completed += not each.is_error
            facts.failed += each.is_error
            facts.input_tokens += each.input_tokens
            facts.output_tokens += each.output_tokens
            if facts.completed + facts.failed == facts.lines:
                facts.on_lines_ended(self._events.now)
                facts.finish(self._events.now, "", "")
        self._held.on_committed(results)
        self._held.remove_over()

    # Lines.

    def _send_lines(self) -> None:
        now = self._events.now
        for _ in range(0 if self._is_closed else self._window.room(now)):
            line = self._held.next_line(EDGE, now)
            if line is None:
                return
            self._window.on_sent()
            self._peers.start_line(self._started(line))

    def _started(self, line: RunnableLine) -> SimLine:
        tenant = self._batch_of(line.chunk.key.batch_id).tenant
        offered = OfferedRequest(0.0, **orjson.loads(line.call.body))
        claimed = line.chunk.claimed
        return SimLine(line.handle, line.line_id, tenant, offered, claimed.expires_at, claimed.priority)

    def _batch_of(self, batch_id: str) -> SimBatch:
        return next(each for each in self.batches if each.facts.batch_id == batch_id)

    # Called by the edge.

    def on_line_running(self, number: int) -> None:
        line = self._held.find(number, EDGE)
        if line and not line.is_running:
            line.is_running = True
            self._window.on_running(self._events.now)
            self._send_lines()

    def on_line_ended(self, ended: pb.LineEnded) -> None:
        line, now = self._held.find(ended.number, EDGE), self._events.now
        assert line, "the only edge ends each run of a line once"
        was_running = line.is_running
        self._window.on_ended(was_running=was_running)
        results = self._held.on_ended(line, ended, now)
        if ended.verdict == pb.LINE_VERDICT_LATER and not was_running:
            self._window.on_shed(retry_delay_of(ended), now)
        self._commit(results)
        self._send_lines()


def _content(number: int, request: OfferedRequest) -> bytes:
    """Return a line whose body gives the lengths of its prompt and its answer, in tokens."""
    body = {"prompt_tokens": request.prompt_tokens, "output_tokens": request.output_tokens}
    return orjson.dumps({"custom_id": str(number), "method": "POST", "url": ENDPOINT, "body": body})
