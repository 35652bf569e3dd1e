"""The ledger of a simulation: requests, waits, service per tenant and engine work."""

from dataclasses import dataclass, field

from penstock.queue.ticket import QueuedTicket
from penstock.simulator.mesh.engine import SimRun
from penstock.simulator.mesh.request import SimRequest
from penstock.simulator.mesh.worker import SimWorker
from penstock.simulator.report.service_accounting import ServiceOverTime


@dataclass(slots=True)
class SimulationLedger:
    """Records of one simulation. Transcripts get their tokens when a run has ended: one at the end of each step."""

    service: ServiceOverTime
    link_delay: float  # s from worker to edge
    ttft_target: float  # s
    requests: list[SimRequest] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # predicted and actual, s
    unpredicted_leases: int = 0  # leases of tickets without a prediction
    zoned_leases: int = 0  # leases of clients with a zone
    same_zone_leases: int = 0  # zoned leases with a worker in the same zone
    first_tokens: int = 0  # attempts of clients that received a first token
    late_first_tokens: int = 0  # first tokens after the TTFT target, counted from the start of the attempt
    abandoned_tokens: int = 0  # positions that engines computed after the client had cancelled
    computed_when_abandoned: dict[int, int] = field(default_factory=dict)  # positions, by run
    depth: dict[int, int] = field(default_factory=dict)  # tickets without a lease, by class

    @property
    def client_requests(self) -> list[SimRequest]:
        """The requests without the lines of batches, for which no client waits."""
        return [each for each in self.requests if each.tenant.backlog is None]

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
        """Append the tokens of a run that have reached the edge by now to the transcript."""
        emitted = worker.emitted_tokens(run)
        times = (
            [at + self.link_delay for at in worker.step_ends[run.first_token_step : run.first_token_step + emitted]]
            if emitted
            else []
        )
        while times and times[-1] > now:
            times.pop()
        if request.trip:
            times = [at + request.trip for at in times]
        transcript = request.transcript
        if times and not transcript.arrivals and request.tenant.backlog is None:
            self.first_tokens += 1
            self.late_first_tokens += times[0] - request.submitted_at > self.ttft_target
        transcript.arrivals += times
        transcript.tokens += len(times)
        transcript.next_index = transcript.tokens

    def record_run_end(self, request: SimRequest, worker: SimWorker, run: SimRun) -> None:
        """Account for a run that has left its engine."""
        request.engine_tokens += worker.computed_tokens(run)
        request.cached_tokens += run.cached_tokens
        if run.run_id in self.computed_when_abandoned:
            self.abandoned_tokens += worker.computed_tokens(run) - self.computed_when_abandoned.pop(run.run_id)
        emitted = worker.emitted_tokens(run)
        if emitted:
            self.service.record_input(run.tenant, worker.step_ends[run.first_token_step], run.prompt_tokens)
            self.service.record_output(run.tenant, worker.step_ends, run.first_token_step, emitted)
