"""What a run of the simulation keeps: requests, waits, service, and what engines worked for whom."""

from dataclasses import dataclass, field

from penstock.queue.waiting import QueuedTicket
from penstock.simulator.mesh.engine import Run
from penstock.simulator.mesh.request import Request
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.report.service_accounting import Served


@dataclass(slots=True)
class Ledger:
    """Histories get their tokens when a run is over: from its first step to its last, one at the end of each."""

    served: Served
    link_delay: float  # s from worker to edge
    ttft_target: float  # s
    requests: list[Request] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # predicted and realised
    unpredicted: int = 0  # tickets that got a lease and no prediction
    leases: int = 0  # of clients whose zone is known
    near_leases: int = 0  # and of them those of a worker in that zone
    first_tokens: int = 0  # tries that came as far
    late: int = 0  # and of them those beyond the target, from the moment of that try
    after_leaving: int = 0  # positions that engines computed for clients that had left by then
    left: dict[int, int] = field(default_factory=dict)  # positions computed when its client left, by run
    depth: dict[int, int] = field(default_factory=dict)  # tickets under way to a lease now, by class

    def count(self, ticket: QueuedTicket, change: int) -> None:
        self.depth[ticket.priority] = self.depth.get(ticket.priority, 0) + change
        self.served.waiting(ticket.tenant_id, change)

    def note_wait(self, request: Request, waited: float) -> None:
        if request.predicted_wait is None:
            self.unpredicted += 1
        else:
            self.waits.append((request.predicted_wait, waited))

    def note_zone(self, request: Request, worker: SimWorker) -> None:
        if request.tenant.zone:
            self.leases += 1
            self.near_leases += worker.kind.zone == request.tenant.zone

    def note_left(self, run: Run, computed: int) -> None:
        self.left[run.run_id] = computed

    def deliver(self, request: Request, worker: SimWorker, run: Run, now: float) -> None:
        """Give the client what of a run has come to its edge by now."""
        emitted = worker.emitted(run)
        times = [at + self.link_delay for at in worker.ends[run.first : run.first + emitted]] if emitted else []
        while times and times[-1] > now:
            times.pop()
        history = request.history
        if times and not history.arrivals:
            self.first_tokens += 1
            self.late += times[0] - request.submitted > self.ttft_target
        history.arrivals += times
        history.tokens += len(times)
        history.next_index = history.tokens

    def close_run(self, request: Request, worker: SimWorker, run: Run) -> None:
        """Account for a run that its engine has no more, whoever still cares."""
        request.engine_tokens += worker.engine_tokens(run)
        request.cached_tokens += run.cached
        if run.run_id in self.left:
            self.after_leaving += worker.engine_tokens(run) - self.left.pop(run.run_id)
        emitted = worker.emitted(run)
        if emitted:
            self.served.give_input(run.tenant, worker.ends[run.first], run.prompt)
            self.served.give_output(run.tenant, worker.ends, run.first, emitted)
