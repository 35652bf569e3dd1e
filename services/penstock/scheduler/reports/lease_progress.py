"""Progress of running leases, from the reports of their workers to the reports to their shards."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.chassis.durations import seconds_of
from penstock.mesh.limits.bounds import TOKENS, at_most
from penstock.mesh.v1.scheduler_pb2 import Progress, ServedLease
from penstock.scheduler.fleet.worker import Worker
from penstock.scheduler.leases import LeaseBook
from penstock.scheduler.reports.service_reports import ServiceReports

MAX_FIRST_TOKEN_S = 86_400.0  # s; more than a request may last


@dataclass(slots=True)
class LeaseProgressReports:
    """Applies the progress that workers report. Leases of other workers and unknown numbers are ignored."""

    leases: LeaseBook
    service_reports: ServiceReports

    def apply(self, worker: Worker, progress: Progress) -> None:
        """Apply a report. A lease that it names in full is named by its number later, while it runs."""
        worker.on_steps(progress.steps)
        if progress.lease_numbers:
            self.service_reports.record_output(worker.numbered_leases, progress, worker.report.steps)
        self.apply_served(worker, progress.leases)

    def apply_served(self, worker: Worker, served: Iterable[ServedLease]) -> None:
        for each in served:
            if entry := self.leases.on_worker(each.lease_id, worker.key):
                entry.served_prompt_tokens = at_most(each.prompt_tokens, TOKENS)
                entry.served_output_tokens = at_most(each.output_tokens, TOKENS)
                entry.served_at_step = worker.report.steps
                entry.first_token_after = min(max(0.0, seconds_of(each.first_token_after)), MAX_FIRST_TOKEN_S)
                if each.number:
                    worker.number_lease(each.number, entry)
                self.service_reports.record(entry)
