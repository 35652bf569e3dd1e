"""Edges and their clients in one: requests come, are refused, tried again, given up, resumed and answered."""

from collections.abc import Iterable
from random import Random
from typing import NamedTuple, Protocol

from penstock.bench.history import CANCELLED, OK, History
from penstock.chassis.errors import Overloaded, PenstockError
from penstock.edge.links.prefix import MAX_BLOCK_HASHES
from penstock.mesh.v1.ticket_pb2 import Lease
from penstock.queue.errors import RejectionWindow
from penstock.queue.waiting import QueuedTicket
from penstock.simulator.mesh.admission_filter import SimDoor
from penstock.simulator.mesh.engine import Run, Text
from penstock.simulator.mesh.event_queue import Events
from penstock.simulator.mesh.request import Request
from penstock.simulator.mesh.shard import EDGE
from penstock.simulator.mesh.worker import MODEL, SimWorker
from penstock.simulator.report.ledger import Ledger
from penstock.simulator.scenario import Scenario, Tenant
from penstock.simulator.traffic.demand import Ask
from penstock.simulator.traffic.shared_prefixes import packed_hashes, salt_of

RETRIED = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")


class EdgePeers(Protocol):
    """Whom edges talk to; each hears of it a link delay later."""

    def enqueue(self, ticket: QueuedTicket) -> None: ...

    def withdraw(self, ticket: QueuedTicket) -> None: ...

    def start(self, worker: str, lease_id: str, run: Run) -> None: ...

    def cancel(self, worker: str, run: Run) -> None: ...

    def worker(self, name: str) -> SimWorker: ...


class Flight(NamedTuple):
    """A run that an edge has started."""

    request: Request
    ticket: QueuedTicket
    run: Run
    worker: SimWorker


class SimEdge:
    """All edges of a mesh. A client's link to its edge takes no time.

    An edge that does not mind its clients never stops what it has begun: a baseline, and what backlog poisoning is.
    """

    def __init__(
        self,
        scenario: Scenario,
        events: Events,
        peers: EdgePeers,
        ledger: Ledger,
        *,
        door: SimDoor | None,  # None: every request is put to the queue
        minds_clients: bool,
    ) -> None:
        self.open = 0  # requests that have not ended
        self.door = door
        self._events = events
        self._peers = peers
        self._ledger = ledger
        self._minds_clients = minds_clients
        self._block_size = scenario.workers[0].block_size
        self._salts = {each.name: salt_of(each.name) for each in scenario.tenants} if scenario.shares_prefixes else {}
        self._rngs = {each.name: Random(f"{scenario.seed}/{each.name}/client") for each in scenario.tenants}
        self._waiting: dict[str, tuple[Request, QueuedTicket]] = {}  # by ticket, until a lease
        self._flights: dict[int, Flight] = {}  # by run, until it is over
        self._last_run = 0
        self._refusals = 0

    @property
    def refused_alone_share(self) -> float:
        """Return the share of refusals that were decided at the door, without the queue."""
        return self.door.refused / self._refusals if self.door and self._refusals else 0.0

    # What clients do.

    def arrive(self, tenant: Tenant, ask: Ask) -> None:
        now, client = self._events.now, tenant.client
        history = History(len(self._ledger.requests), now, prompt_tokens=ask.prompt)
        request = Request(tenant, ask.prompt, ask.output, history, self._rngs[tenant.name], ask.beginning)
        request.declared = _declared(tenant, ask.output, request.rng)
        self._ledger.requests.append(request)
        self.open += 1
        if client.leave_share and request.rng.random() < client.leave_share:
            self._events.at(now + request.rng.random() * client.leave_within, self._leave, request, CANCELLED, "OK")
        if client.deadline:
            self._events.at(now + client.deadline, self._leave, request, "DEADLINE_PASSED", "DEADLINE_EXCEEDED")
        self._try(request)

    def _try(self, request: Request) -> None:
        if request.is_over:
            return
        now, client = self._events.now, request.tenant.client
        request.tries += 1
        request.submitted = now
        ticket = self._ticket(request)
        if self.door and (error := self.door.check(ticket, now)):
            self._refused(request, error)
            return
        self._enqueue(request, ticket)
        if client.patience:
            self._events.at(now + client.patience, self._lose_patience, request, request.tries)

    def _lose_patience(self, request: Request, tries: int) -> None:
        if request.is_over or request.tries != tries or request.ticket is None or self._has_token(request):
            return
        self._drop_try(request)
        if request.tries > request.tenant.client.retries:
            self._end(request, CANCELLED)
        else:
            self._try_later(request, 0.0)

    def _leave(self, request: Request, outcome: str, code: str) -> None:
        if not request.is_over:
            self._drop_try(request)
            self._end(request, outcome, code)

    def _try_later(self, request: Request, retry_after: float) -> None:
        backoff = request.tenant.client.backoff * 2 ** (request.tries - 1) * (0.5 + request.rng.random())
        self._events.at(self._events.now + max(retry_after, backoff), self._try, request)

    # What the queue says.

    def queued(self, ticket_id: str, predicted_wait: float | None, first_token: float | None) -> None:
        if found := self._waiting.get(ticket_id):
            found[0].predicted_wait, found[0].predicted_ttft = predicted_wait, first_token

    def leased(self, lease: Lease, waited: float) -> None:
        """Start the run; a lease that came after its client had left lapses or is recalled."""
        found = self._waiting.get(lease.ticket_id)
        if found is None or found[1].attempt != lease.attempt:
            return
        request, ticket = self._no_longer_waits(lease.ticket_id)
        self._ledger.note_wait(request, waited)
        self._last_run += 1
        emitted = ticket.prompt_tokens - request.prompt
        text = self._text(request, emitted) if self._salts else None
        lengths = ticket.prompt_tokens, request.output - emitted, ticket.max_output_tokens
        run = Run(self._last_run, ticket.tenant_id, *lengths, text, is_express=lease.express)
        worker = self._peers.worker(lease.worker_id)
        self._ledger.note_zone(request, worker)
        self._flights[run.run_id] = Flight(request, ticket, run, worker)
        if request.ticket is ticket:
            request.run, request.worker = run, lease.worker_id
        else:
            self._ledger.note_left(run, 0)
        self._peers.start(lease.worker_id, lease.lease_id, run)

    def closed_behind(self, ticket_id: str, closed: Iterable[RejectionWindow]) -> None:
        """The queue took a ticket, and says for whom there is no room behind it."""
        if self.door and (found := self._waiting.get(ticket_id)):
            self.door.queued(found[1], closed, self._events.now)

    def shed(self, ticket_id: str, error: PenstockError, closed: Iterable[RejectionWindow]) -> None:
        if ticket_id not in self._waiting:
            return
        request, ticket = self._no_longer_waits(ticket_id)
        if self.door and isinstance(error, Overloaded):
            self.door.shed(ticket, closed, error, self._events.now)
        if request.ticket is ticket:
            request.ticket = None
            self._refused(request, error)

    def _refused(self, request: Request, error: PenstockError) -> None:
        self._refusals += 1
        code = error.code.name
        if code in RETRIED and request.tries <= request.tenant.client.retries:
            self._try_later(request, error.retry_after or 0.0)
        else:
            self._end(request, error.reason, code, error.retry_after)

    # What workers say.

    def run_over(self, worker: SimWorker, run: Run) -> None:
        """A run gave its last token, or was let go."""
        request = self._flights.pop(run.run_id).request
        self._ledger.close_run(request, worker, run)
        if request.run is run:
            self._ledger.deliver(request, worker, run, self._events.now)
            request.ticket = request.run = None
            request.history.usage_tokens = request.output
            self._end(request, OK)

    def run_lost(self, worker: SimWorker, run: Run) -> None:
        """Its worker is dead: have another go on where the answer broke off."""
        request, former, *_ = self._flights.pop(run.run_id)
        self._ledger.close_run(request, worker, run)
        if request.run is run:
            self._ledger.deliver(request, worker, run, self._events.now)
            request.run = None
            avoided = (*former.avoid_workers, worker.name)
            self._enqueue(request, self._ticket(request, former.attempt + 1, avoided))

    # Moves.

    def _ticket(self, request: Request, attempt: int = 1, avoided: tuple[str, ...] = ()) -> QueuedTicket:
        tenant, emitted = request.tenant, request.history.tokens
        deadline = request.history.started + tenant.client.deadline if tenant.client.deadline else 0.0
        return QueuedTicket(
            ticket_id=f"{request.history.number}.{request.tries}",
            edge=EDGE,
            tenant_id=tenant.name,
            model=MODEL,
            priority=tenant.priority,
            weight=tenant.weight,
            prompt_tokens=request.prompt + emitted,
            max_output_tokens=max(1, request.declared - emitted),
            deadline=deadline if self._minds_clients else 0.0,
            enqueued=request.submitted,
            attempt=attempt,
            prefix_hashes=self._hashes(request) if self._salts else b"",
            avoid_workers=avoided,
        )

    def _text(self, request: Request, emitted: int) -> Text:
        return Text(request.history.number, self._salts[request.tenant.name], request.beginning, emitted)

    def _hashes(self, request: Request) -> bytes:
        named = min(request.prompt, MAX_BLOCK_HASHES * self._block_size)
        token_ids = request.beginning.token_ids(named, request.history.number)
        return packed_hashes(token_ids, self._block_size, self._salts[request.tenant.name])

    def _enqueue(self, request: Request, ticket: QueuedTicket) -> None:
        request.ticket, request.predicted_wait = ticket, None
        self._waiting[ticket.ticket_id] = request, ticket
        self._ledger.count(ticket, 1)
        self._peers.enqueue(ticket)

    def _no_longer_waits(self, ticket_id: str) -> tuple[Request, QueuedTicket]:
        request, ticket = self._waiting.pop(ticket_id)
        self._ledger.count(ticket, -1)
        return request, ticket

    def _has_token(self, request: Request) -> bool:
        return bool(request.run and self._peers.worker(request.worker).emitted(request.run))

    def _drop_try(self, request: Request) -> None:
        """Take the present try out of the mesh, wherever it is."""
        ticket, run = request.ticket, request.run
        request.ticket = request.run = None
        if ticket is None:
            return
        if run:
            worker = self._peers.worker(request.worker)
            self._ledger.deliver(request, worker, run, self._events.now)
            self._ledger.note_left(run, worker.engine_tokens(run))
            if self._minds_clients:
                self._peers.cancel(request.worker, run)
        elif self._minds_clients:
            self._no_longer_waits(ticket.ticket_id)
            self._peers.withdraw(ticket)

    def _end(self, request: Request, outcome: str, code: str = "OK", retry_after: float | None = None) -> None:
        assert not request.is_over, "a request ends once"
        request.history.end(self._events.now, outcome, code, retry_after)
        self.open -= 1

    def close(self) -> None:
        """End what time ran out for, and account for what engines still have."""
        for request, _, run, worker in self._flights.values():
            self._ledger.close_run(request, worker, run)
            if request.run is run:
                self._ledger.deliver(request, worker, run, self._events.now)
        for request in self._ledger.requests:
            if not request.is_over:
                self._end(request, "UNFINISHED", "UNFINISHED")


def _declared(tenant: Tenant, output: int, rng: Random) -> int:
    """Never below what the answer comes to."""
    noise = 1 + rng.uniform(-tenant.declare_noise, tenant.declare_noise) if tenant.declare_noise else 1.0
    return max(output, round(output * tenant.over_declare * noise))
