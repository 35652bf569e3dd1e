"""What a run of the simulation keeps: requests, waits, service, and what engines worked for whom."""

from dataclasses import dataclass, field

from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.report.service_accounting import ServiceOverTime


@dataclass(slots=True)
class SimulationLedger:
    """Histories get their tokens when a run is over: from its first step to its last, one at the end of each."""

    service: ServiceOverTime
    link_delay: float  # s from worker to edge
    ttft_target: float  # s
    requests: list[SimRequest] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # predicted and realised
    unpredicted_leases: int = 0  # tickets that got a lease and no prediction
    zoned_leases: int = 0  # of clients whose zone is known
    same_zone_leases: int = 0  # and of them those of a worker in that zone
    first_tokens: int = 0  # tries that came as far
    late_first_tokens: int = 0  # and of them those beyond the target, from the moment of that try
    abandoned_tokens: int = 0  # positions that engines computed for clients that had left by then
    computed_when_abandoned: dict[int, int] = field(
        default_factory=dict
    )  # positions computed when its client left, by run
    depth: dict[int, int] = field(default_factory=dict)  # tickets under way to a lease now, by class

    def count_waiting(self, ticket: QueuedTicket, change: int) -> None:
        self.depth[ticket.priority] = self.depth.get(ticket.priority, 0) + change
        self.service.count_waiting(ticket.tenant_id, change)

    def record_wait(self, request: SimRequest, waited: float) -> None:
        if request.predicted_wait is None:
            self.unpredicted_leases += 1
        else:
            self.waits.append((request.predicted_wait, waited))

    def record_zone(self, request: SimRequest, worker: SimWorker) -> None:
        if request.tenant.zone:
            self.zoned_leases += 1
            self.same_zone_leases += worker.kind.zone == request.tenant.zone

    def record_abandoned(self, run: SimRun, computed_tokens: int) -> None:
        self.computed_when_abandoned[run.run_id] = computed_tokens

    def deliver(self, request: SimRequest, worker: SimWorker, run: SimRun, now: float) -> None:
        """Give the client what of a run has come to its edge by now."""
        emitted = worker.emitted_tokens(run)
        times = (
            [at + self.link_delay for at in worker.step_ends[run.first_token_step : run.first_token_step + emitted]]
            if emitted
            else []
        )
        while times and times[-1] > now:
            times.pop()
        history = request.transcript
        if times and not history.arrivals:
            self.first_tokens += 1
            self.late_first_tokens += times[0] - request.submitted_at > self.ttft_target
        history.arrivals += times
        history.tokens += len(times)
        history.next_index = history.tokens

    def record_run_end(self, request: SimRequest, worker: SimWorker, run: SimRun) -> None:
        """Account for a run that its engine has no more, whoever still cares."""
        request.engine_tokens += worker.computed_tokens(run)
        request.cached_tokens += run.cached_tokens
        if run.run_id in self.computed_when_abandoned:
            self.abandoned_tokens += worker.computed_tokens(run) - self.computed_when_abandoned.pop(run.run_id)
        emitted = worker.emitted_tokens(run)
        if emitted:
            self.service.record_input(run.tenant, worker.step_ends[run.first_token_step], run.prompt_tokens)
            self.service.record_output(run.tenant, worker.step_ends, run.first_token_step, emitted)
