"""Simulated edges and their clients: requests arrive, are rejected, retried, cancelled, resumed and answered."""

from collections.abc import Iterable
from random import Random
from typing import Protocol

from penstock.bench.transcript import CANCELLED, OK, Transcript
from penstock.chassis.durations import set_seconds
from penstock.chassis.errors import Overloaded, PenstockError
from penstock.mesh.v1 import batch_pb2 as pb
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.queue.errors import RejectionWindow
from penstock.simulator.mesh.batch_replica import SimLine
from penstock.simulator.mesh.edge.admission_filter import SimAdmissionFilter
from penstock.simulator.mesh.edge.attempts import SimAttempts
from penstock.simulator.mesh.edge.peers import EdgePeers
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.mesh.event_queue import SimEventQueue
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.report.ledger import SimulationLedger
from penstock.simulator.scenario import Scenario, SimTenant
from penstock.simulator.traffic.demand import OfferedRequest

RETRIED_CODES = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


class RegionBorder(Protocol):
    """The border of a region, over which requests leave it."""

    @property
    def region(self) -> str: ...

    def redirect(self, request: SimRequest) -> bool:
        """Let another region serve a request because this one, its own, is lost. Return False if it is not lost."""

    def offer(self, request: SimRequest) -> bool:
        """Offer a request that its region has rejected to another one. Return False if there is none to offer it to."""

    def on_guest_rejected(self, request: SimRequest, error: PenstockError) -> None:
        """This region has rejected the guest `request`, which goes back."""

    def recall(self, request: SimRequest) -> None:
        """The client of `request` has withdrawn its attempt; the next one begins in its own region."""

    def edge_of(self, request: SimRequest) -> "SimEdge":
        """Return the edge that has the request."""


class SimEdge:
    """All edges of a mesh. The link between a client and its edge has no delay."""

    def __init__(
        self,
        scenario: Scenario,
        events: SimEventQueue,
        peers: EdgePeers,
        ledger: SimulationLedger,
        *,
        admission_filter: SimAdmissionFilter | None,  # None: every request is enqueued
        cancels_abandoned: bool,  # as in `SimAttempts`
    ) -> None:
        self.open_requests = 0  # requests that have not ended
        self.admission_filter = admission_filter
        self.border: RegionBorder | None = None
        self._events = events
        self._peers = peers
        self._ledger = ledger
        self._attempts = SimAttempts(scenario, events, peers, ledger, cancels_abandoned=cancels_abandoned)
        self._rngs = {each.name: Random(f"{scenario.seed}/{each.name}/client") for each in scenario.tenants}
        self._held: list[tuple[SimRequest, float]] = []  # requests that wait for the first worker, and since when
        self._lines: dict[str, SimRequest] = {}  # batch lines that have not ended, by line id
        self._rejections = 0

    @property
    def rejected_by_edge_share(self) -> float:
        """The share of rejections that the edges decided without the queue."""
        return self.admission_filter.rejected / self._rejections if self.admission_filter and self._rejections else 0.0

    # Clients.

    def on_arrival(self, tenant: SimTenant, offered: OfferedRequest) -> None:
        now, client = self._events.now, tenant.client
        request = self._new_request(tenant, offered)
        self.open_requests += 1
        if client.leave_share and request.rng.random() < client.leave_share:
            self._events.schedule(
                now + request.rng.random() * client.leave_within, self._abandon, request, CANCELLED, "OK"
            )
        if client.deadline:
            request.deadline = now + client.deadline
            self._events.schedule(request.deadline, self._abandon, request, "DEADLINE_PASSED", "DEADLINE_EXCEEDED")
        self._begin_attempt(request)

    def _new_request(self, tenant: SimTenant, offered: OfferedRequest) -> SimRequest:
        transcript = Transcript(len(self._ledger.requests), self._events.now)
        request = SimRequest(
            tenant, offered.prompt_tokens, offered.output_tokens, transcript, self._rngs[tenant.name], offered.prefix
        )
        request.priority = tenant.priority
        request.max_output_tokens = _declared_tokens(tenant, offered.output_tokens, request.rng)
        if self.border:
            request.home = request.region = self.border.region
        self._ledger.requests.append(request)
        return request

    def on_model_served(self) -> None:
        """A worker has attached: the held requests are enqueued, in their order."""
        held, self._held = self._held, []
        self._peers.on_held_requests(0)
        for request, held_at in held:
            self._begin_attempt(request, held_at)

    def _begin_attempt(self, request: SimRequest, held_at: float | None = None) -> None:
        """Enqueue a request, or hold it. A request that was held keeps the time of its arrival."""
        if request.has_ended or (self.border and self.border.redirect(request)):
            return
        if not self._peers.is_served:
            request.was_held = True
            self._held.append((request, self._events.now if held_at is None else held_at))
            self._peers.on_held_requests(len(self._held))
            return
        now, client = self._events.now, request.tenant.client
        request.attempts += 1
        request.offered_to = ()
        request.submitted_at = now if held_at is None else held_at
        ticket = self._attempts.new_ticket(request)
        if self.admission_filter and (error := self.admission_filter.check(ticket, now)):
            self._on_rejected(request, error)
            return
        self._attempts.enqueue(request, ticket)
        if client.patience:
            self._events.schedule(now + client.patience, self._on_patience_expired, request, request.attempts)

    def _on_patience_expired(self, request: SimRequest, attempts: int) -> None:
        if (
            request.has_ended
            or request.attempts != attempts
            or request.ticket is None
            or self._edge_of(request).has_first_token(request)
        ):
            return
        self._edge_of(request).withdraw_attempt(request)
        if self.border:
            self.border.recall(request)
        if request.attempts > request.tenant.client.retries:
            self.end(request, CANCELLED)
        else:
            self._retry_later(request, 0.0)

    def _abandon(self, request: SimRequest, outcome: str, code: str) -> None:
        if not request.has_ended:
            edge = self._edge_of(request)
            edge.withdraw_attempt(request)
            edge.end(request, outcome, code)

    def _edge_of(self, request: SimRequest) -> "SimEdge":
        """Return the edge that has the request: this one, or one of another region."""
        return self.border.edge_of(request) if self.border else self

    def _retry_later(self, request: SimRequest, retry_after: float) -> None:
        backoff = request.tenant.client.backoff * 2 ** (request.attempts - 1) * (0.5 + request.rng.random())
        self._events.schedule(self._events.now + max(retry_after, backoff), self._begin_attempt, request)

    # Called by the batch replica.

    def on_line(self, line: SimLine) -> None:
        """Run a line. A line that was given back continues after the tokens that it has emitted."""
        request = self._lines.get(line.line_id)
        if request is None:
            request = self._lines[line.line_id] = self._new_request(line.tenant, line.offered)
        request.line, request.deadline = line.number, line.deadline
        request.priority = min(line.tenant.priority, line.priority)
        self.open_requests += 1
        self._begin_attempt(request)

    def on_line_stopped(self, line_id: str) -> None:
        request = self._lines.get(line_id)
        if request and request.line:
            self._attempts.withdraw(request)
            self._give_back(request, 0.0)

    def _give_back(self, request: SimRequest, retry_after: float) -> None:
        ended = pb.LineEnded(number=request.line, verdict=pb.LINE_VERDICT_LATER)
        set_seconds(ended.failure.retry_after, retry_after)
        request.line = 0
        self.open_requests -= 1
        self._peers.send_line_ended(ended)

    def _on_line_answered(self, request: SimRequest) -> None:
        ended = pb.LineEnded(
            number=request.line,
            verdict=pb.LINE_VERDICT_ANSWERED,
            input_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        self._peers.send_line_ended(ended)

    # Called by edges of other regions.

    def on_guest(self, request: SimRequest) -> None:
        """Enqueue a request that another region has rejected."""
        if not request.has_ended:
            self._attempts.enqueue(request, self._attempts.new_ticket(request))

    def on_guest_returned(self, request: SimRequest, error: PenstockError) -> None:
        """Continue with a request of this region that no other region has admitted."""
        if not request.has_ended:
            self._refuse(request, error)

    def take_over(self, request: SimRequest) -> None:
        """Continue a request of a region that is lost, after the tokens that its client has."""
        if not request.has_ended:
            self._begin_attempt(request)

    def give_all(self) -> list[SimRequest]:
        """Take all open requests out of this mesh, which is lost. Batch lines stay."""
        given = [each for each in self._attempts.requests() if not each.line]
        for request in given:
            self._attempts.withdraw(request)
        return given

    # Called by the queue.

    def on_queued(self, ticket_id: str, predicted_wait: float | None, predicted_ttft: float | None) -> None:
        if waiting := self._attempts.find_waiting(ticket_id):
            request, _ = waiting
            request.predicted_wait, request.predicted_ttft = predicted_wait, predicted_ttft

    def on_leased(self, lease: Lease, waited: float) -> None:
        self._attempts.start(lease, waited)

    def on_rejection_windows(self, ticket_id: str, windows: Iterable[RejectionWindow]) -> None:
        """The queue has admitted a ticket and reports which demand it would reject behind it."""
        waiting = self._attempts.find_waiting(ticket_id)
        if self.admission_filter and waiting and not waiting[0].is_guest:
            self.admission_filter.on_queued(waiting[1], windows, self._events.now)

    def on_shed(self, ticket_id: str, error: PenstockError, windows: Iterable[RejectionWindow]) -> None:
        if not self._attempts.find_waiting(ticket_id):
            return
        request, ticket = self._attempts.remove_waiting(ticket_id)
        if self.admission_filter and isinstance(error, Overloaded) and not request.is_guest:
            self.admission_filter.on_shed(ticket, windows, error, self._events.now)
        if request.ticket is ticket:
            request.ticket = None
            self._on_rejected(request, error)

    def _on_rejected(self, request: SimRequest, error: PenstockError) -> None:
        self._rejections += 1
        if request.line:
            self._give_back(request, error.retry_after or 0.0)
        elif request.is_guest and self.border:
            self.border.on_guest_rejected(request, error)
        elif not (self.border and isinstance(error, Overloaded) and self.border.offer(request)):
            self._refuse(request, error)

    def _refuse(self, request: SimRequest, error: PenstockError) -> None:
        """Answer a client with an error. It may retry."""
        code = error.code.name
        if code in RETRIED_CODES and request.attempts <= request.tenant.client.retries:
            self._retry_later(request, error.retry_after or 0.0)
        else:
            self.end(request, error.reason, code, error.retry_after)

    # Called by workers.

    def on_run_ended(self, worker: SimWorker, run: SimRun) -> None:
        """A run has emitted its last token or was cancelled."""
        request = self._attempts.end_run(worker, run).request
        if request.run is run:
            request.ticket = request.run = None
            request.transcript.usage_tokens = request.output_tokens
            self.end(request, OK)
            if request.line:
                self._on_line_answered(request)

    def on_run_lost(self, worker: SimWorker, run: SimRun) -> None:
        """The worker of a run is dead: resume the answer on another worker."""
        self._attempts.resume(worker, run, avoid_workers=(worker.name,))

    def on_run_revoked(self, worker: SimWorker, run: SimRun) -> None:
        """The lease of a run was revoked for a ticket of a higher class: resume the answer on any worker."""
        self._attempts.resume(worker, run)

    def has_first_token(self, request: SimRequest) -> bool:
        return self._attempts.has_first_token(request)

    def withdraw_attempt(self, request: SimRequest) -> None:
        self._attempts.withdraw(request)

    def end(self, request: SimRequest, outcome: str, code: str = "OK", retry_after: float | None = None) -> None:
        assert not request.has_ended, "a request ends exactly once"
        request.transcript.end(self._events.now, outcome, code, retry_after)
        self.open_requests -= 1

    def close(self) -> None:
        """End the requests that are still open, and account for the work of active runs."""
        self._attempts.close()
        for request in self._ledger.requests:
            if not request.has_ended:
                self.end(request, "UNFINISHED", "UNFINISHED")


def _declared_tokens(tenant: SimTenant, output: int, rng: Random) -> int:
    """Return the declared limit, which is never below the length of the answer."""
    noise = 1 + rng.uniform(-tenant.declare_noise, tenant.declare_noise) if tenant.declare_noise else 1.0
    return max(output, round(output * tenant.over_declare * noise))
