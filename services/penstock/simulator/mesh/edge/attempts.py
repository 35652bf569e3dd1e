"""Attempts of simulated requests: tickets that wait at the queue, and runs that were started on workers."""

from typing import NamedTuple

from penstock.chassis.prefix_depths import MAX_DEPTH
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.edge.peers import EdgePeers
from penstock.simulator.mesh.engine import PromptContent, SimRun
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.mesh.shard import EDGE_ID
from penstock.simulator.mesh.worker import MODEL, SimWorker
from penstock.simulator.report.ledger import SimulationLedger
from penstock.simulator.scenario import Scenario
from penstock.simulator.traffic.shared_prefixes import packed_block_hashes, salt_of


class StartedRun(NamedTuple):
    """A run that an edge has started."""

    request: SimRequest
    ticket: QueuedTicket
    run: SimRun
    worker: SimWorker


class SimAttempts:
    """The attempts of all requests of a mesh. A run may outlive the attempt that it was started for.

    If `cancels_abandoned` is false, the work of clients that have cancelled continues, as in some baselines.
    """

    def __init__(
        self,
        scenario: Scenario,
        events: SimEventQueue,
        peers: EdgePeers,
        ledger: SimulationLedger,
        *,
        cancels_abandoned: bool,
    ) -> None:
        self._events = events
        self._peers = peers
        self._ledger = ledger
        self._cancels_abandoned = cancels_abandoned
        self._block_size = scenario.workers[0].block_size
        self._places_by_prefix = scenario.places_by_prefix
        self._salts = (
            {each.name: salt_of(each.name) for each in scenario.tenants} if scenario.has_shared_prefixes else {}
        )
        self._waiting: dict[str, tuple[SimRequest, QueuedTicket]] = {}  # by ticket, until a lease
        self._started_runs: dict[int, StartedRun] = {}  # by run, until the run has ended
        self._last_run_id = 0

    def new_ticket(self, request: SimRequest, attempt: int = 1, avoid_workers: tuple[str, ...] = ()) -> QueuedTicket:
        tenant, emitted = request.tenant, request.transcript.tokens
        return QueuedTicket(
            ticket_id=f"{request.name}.{request.attempts}",
            edge=EDGE_ID,
            tenant_id=tenant.name,
            model=MODEL,
            priority=request.priority,
            weight=tenant.weight,
            prompt_tokens=request.prompt_tokens + emitted,
            max_output_tokens=max(1, request.max_output_tokens - emitted),
            deadline=request.deadline if self._cancels_abandoned else 0.0,
            enqueued=request.submitted_at,
            attempt=attempt,
            prefix_hashes=self._block_hashes(request) if self._salts and self._places_by_prefix else b"",
            avoid_workers=avoid_workers,
            away=request.away,
        )

    def enqueue(self, request: SimRequest, ticket: QueuedTicket) -> None:
        request.ticket, request.predicted_wait = ticket, None
        self._waiting[ticket.ticket_id] = request, ticket
        self._ledger.count_waiting(ticket, 1)
        self._peers.enqueue(ticket)

    def find_waiting(self, ticket_id: str) -> tuple[SimRequest, QueuedTicket] | None:
        return self._waiting.get(ticket_id)

    def remove_waiting(self, ticket_id: str) -> tuple[SimRequest, QueuedTicket]:
        request, ticket = self._waiting.pop(ticket_id)
        self._ledger.count_waiting(ticket, -1)
        return request, ticket

    def start(self, lease: Lease, waited: float) -> None:
        """Start the run of a lease, unless the client has cancelled since."""
        waiting = self._waiting.get(lease.ticket_id)
        if waiting is None or waiting[1].attempt != lease.attempt:
            return
        request, ticket = self.remove_waiting(lease.ticket_id)
        self._ledger.record_wait(request, waited)
        run = self._new_run(request, ticket)
        worker = self._peers.worker(lease.worker_id)
        self._ledger.record_zone(request, worker)
        self._started_runs[run.run_id] = StartedRun(request, ticket, run, worker)
        if request.ticket is ticket:
            request.run, request.worker = run, lease.worker_id
        else:
            self._ledger.record_abandoned(run, 0)
        self._peers.start(lease.worker_id, lease.lease_id, run)
        if request.line:
            self._peers.send_line_running(request.line)

    def end_run(self, worker: SimWorker, run: SimRun) -> StartedRun:
        """Remove a run that has ended at its worker, and deliver its output if it is the request's current one."""
        started = self._started_runs.pop(run.run_id)
        self._ledger.record_run_end(started.request, worker, run)
        if started.request.run is run:
            self._ledger.deliver(started.request, worker, run, self._events.now)
        return started

    def resume(self, worker: SimWorker, run: SimRun, avoid_workers: tuple[str, ...] = ()) -> None:
        """Enqueue the request of a run that has ended early again, after the tokens that it has emitted."""
        request, former, *_ = self.end_run(worker, run)
        if request.run is run:
            request.run = None
            avoid_workers = (*former.avoid_workers, *avoid_workers)
            self.enqueue(request, self.new_ticket(request, former.attempt + 1, avoid_workers))

    def has_first_token(self, request: SimRequest) -> bool:
        return bool(request.run and self._peers.worker(request.worker).emitted_tokens(request.run))

    def withdraw(self, request: SimRequest) -> None:
        """Remove the current attempt of a request from the mesh, whether it waits or runs."""
        ticket, run = request.ticket, request.run
        request.ticket = request.run = None
        if ticket is None:
            return
        if run:
            worker = self._peers.worker(request.worker)
            self._ledger.deliver(request, worker, run, self._events.now)
            self._ledger.record_abandoned(run, worker.computed_tokens(run))
            if self._cancels_abandoned:
                self._peers.cancel(request.worker, run)
        elif self._cancels_abandoned:
            self.remove_waiting(ticket.ticket_id)
            self._peers.withdraw(ticket)

    def requests(self) -> list[SimRequest]:
        """Return the requests that wait, then those that run."""
        waiting = [request for request, _ in self._waiting.values()]
        running = [each.request for each in self._started_runs.values() if each.request.run is each.run]
        return [*waiting, *running]

    def close(self) -> None:
        """Account for the work of active runs."""
        for request, _, run, worker in self._started_runs.values():
            self._ledger.record_run_end(request, worker, run)
            if request.run is run:
                self._ledger.deliver(request, worker, run, self._events.now)

    def _new_run(self, request: SimRequest, ticket: QueuedTicket) -> SimRun:
        self._last_run_id += 1
        emitted = ticket.prompt_tokens - request.prompt_tokens
        content = self._prompt_content(request, emitted) if self._salts else None
        lengths = ticket.prompt_tokens, request.output_tokens - emitted, ticket.max_output_tokens
        return SimRun(self._last_run_id, ticket.tenant_id, *lengths, content, prefill_rank=ticket.prefill_rank)

    def _prompt_content(self, request: SimRequest, emitted: int) -> PromptContent:
        return PromptContent(request.transcript.number, self._salts[request.tenant.name], request.prefix, emitted)

    def _block_hashes(self, request: SimRequest) -> bytes:
        hashed_tokens = min(request.prompt_tokens, MAX_DEPTH * self._block_size)
        token_ids = request.prefix.token_ids(hashed_tokens, request.transcript.number)
        return packed_block_hashes(token_ids, self._block_size, self._salts[request.tenant.name])
