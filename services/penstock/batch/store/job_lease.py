"""A job that this replica has, and its lease, which the work renews as it goes on."""

import asyncio
from dataclasses import dataclass, field

from penstock.batch.store import jobs
from penstock.batch.store.jobs import Job
from penstock.batch.store.store import BatchStore

JOB_LEASE_S = 30.0
RENEWAL_S = 10.0  # between renewals


class JobLost(Exception):
    """Another replica has the job."""


@dataclass(slots=True)
class JobLease:
    """Replicas share jobs by leases. A job that is cut is done again, here or elsewhere."""

    store: BatchStore
    job: Job
    _due: float = field(init=False)

    def __post_init__(self) -> None:
        self._due = asyncio.get_running_loop().time() + RENEWAL_S

    async def keep(self) -> None:
        """Renew the lease if that is due. Raises JobLost and StoreUnavailable."""
        now = asyncio.get_running_loop().time()
        if now < self._due:
            return
        if not await self.store.run(jobs.renew_job, self.job, JOB_LEASE_S):
            raise JobLost
        self._due = now + RENEWAL_S

    async def release(self) -> None:
        """Let any replica do the job at once. Raises StoreUnavailable."""
        await self.store.run(jobs.renew_job, self.job, 0.0)
