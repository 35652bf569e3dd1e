"""Part `residency`: prompts of a tenant that allows one region never reach another one, whatever fails.

Another tenant, which allows every region, fills the home region at the same time, so that requests leave it. A third of
the prompts is sent to the proxy of the other region, and the clients of all others know it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from penstock.bench.drivers.driver import NO_RETRIES
from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.load import BenchRequest
from penstock.bench.run import run_closed_loop
from penstock.bench.transcript import OK, Transcript
from penstock.client import RetryPolicy
from penstock.local_mesh.plan import MeshOptions
from penstock.mesh.regions import REGION_NOT_ALLOWED
from penstock.proofs.card import CardLine, at_least, exactly, reported
from penstock.proofs.regions.charges import read_charges
from penstock.proofs.regions.judge import ResidencyFindings, find_outside
from penstock.proofs.regions.load import fixed_requests
from penstock.proofs.regions.options import RegionsOptions
from penstock.proofs.regions.testbed import AWAY, HOME, PartResult, RegionsTestbed, open_regions
from penstock.proofs.testbed.logs import read_events
from penstock.v1.admin_pb2 import Tenant

# Few slots at home, which the other tenant fills.
SLOTS, WORKERS = 8, {HOME: 1, AWAY: 2}
SETTINGS = (
    f"PENSTOCK_WORKER_SLOTS={SLOTS}",
    "PENSTOCK_WORKER_SIM_BASE_S=0.04",
    "PENSTOCK_QUEUE_TTFT_STANDARD=2",
)
RESIDENT, ROAMING = "resident", "roaming"  # tenants
RESIDENT_CLIENTS, ROAMING_CLIENTS = 24, 32  # of closed loops
RESIDENT_TOKENS, ROAMING_TOKENS = 1, 16  # of an answer
RETRIES = RetryPolicy(max_attempts=3, max_wait=0.5, connect_timeout=2.0)
CALM_S = 2.0  # between two faults
OUTAGE_S = 4.0  # of faults that the proof ends
PAUSE_AFTER_FAILURE_S = 0.05
NO_FAULT = "no fault"

Fault = Callable[[RegionsTestbed], Awaitable[None]]


@dataclass(slots=True)
class PromptLoad:
    """A closed loop of clients, whose transcripts tell only the outcomes."""

    outcomes: Counter[str]
    clients: int
    tokens: int
    is_stopped: bool = False

    @property
    def sent(self) -> int:
        return self.outcomes.total()

    async def run(self, drivers: Sequence[GrpcDriver]) -> None:
        async def send(request: BenchRequest) -> None:
            transcript = Transcript(request.number)
            await drivers[request.number % len(drivers)].send(request, transcript)
            self.outcomes[transcript.outcome] += 1
            if transcript.outcome != OK:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

        await run_closed_loop(self.clients, self._requests(), send)

    def _requests(self) -> Iterator[BenchRequest]:
        while not self.is_stopped:
            yield from (each for each in fixed_requests(64, self.tokens, self.sent) if not self.is_stopped)


async def residency(options: RegionsOptions, mesh: MeshOptions, console: Console) -> PartResult:
    resident = PromptLoad(Counter(), RESIDENT_CLIENTS, RESIDENT_TOKENS)
    roaming = PromptLoad(Counter(), ROAMING_CLIENTS, ROAMING_TOKENS)
    async with open_regions(
        mesh, console, round_trip_s=options.round_trip_s, settings=SETTINGS, workers=WORKERS
    ) as testbed:
        tenants = [Tenant(tenant_id=RESIDENT, allowed_regions=[HOME]), Tenant(tenant_id=ROAMING)]
        await testbed.put_tenants(tenants)
        async with (
            testbed.client(HOME, RESIDENT, has_failover=True, retries=RETRIES) as client,
            client.session() as session,
            testbed.client(AWAY, RESIDENT, retries=NO_RETRIES) as elsewhere,
            testbed.client(HOME, ROAMING, has_failover=True, retries=RETRIES) as other,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(resident.run([GrpcDriver([each]) for each in (client, session, elsewhere)]))
            group.create_task(roaming.run([GrpcDriver([other])]))
            injected = await _inject_all(testbed, resident, options.prompts)
            resident.is_stopped = roaming.is_stopped = True
    charges = {name: read_charges(folder) for name, folder in testbed.folders().items()}
    ended = {name: list(read_events(folder, "edge", "ticket_done")) for name, folder in testbed.folders().items()}
    findings, control = (find_outside(tenant, charges, ended, HOME) for tenant in (RESIDENT, ROAMING))
    result = PartResult(void_reason=void_reason(resident.outcomes, control))
    result.lines += residency_lines(resident.outcomes, findings, control, injected)
    result.notes += [f"faults: {', '.join(f'{name} {count}' for name, count in injected.items())}"]
    result.notes += [f"outcomes: {', '.join(f'{name} {count}' for name, count in resident.outcomes.most_common())}"]
    return result


async def _inject_all(testbed: RegionsTestbed, load: PromptLoad, prompts: int) -> Counter[str]:
    """Inject every fault, one after the other, and again until `prompts` were sent. Return how often each was."""
    injected = Counter[str]()
    while load.sent < prompts or not injected:
        for name, inject in FAULTS.items():
            testbed.report_progress(f"residency: {name}; {load.sent} prompts sent")
            await inject(testbed)
            injected[name] += 1
            await asyncio.sleep(CALM_S)
    return injected


async def _kill_region(testbed: RegionsTestbed, region: str) -> None:
    await testbed.local.kill(region)
    await asyncio.sleep(OUTAGE_S)
    await testbed.local.restart(region)


async def _kill_auth(testbed: RegionsTestbed, region: str) -> None:
    processes = testbed.mesh(region).processes
    processes.named("auth").process.kill()
    await processes.named("auth").process.wait()
    await asyncio.sleep(OUTAGE_S)
    await testbed.mesh(region).restart("auth")


async def _cut_link(testbed: RegionsTestbed) -> None:
    testbed.local.cut(HOME, AWAY)
    await asyncio.sleep(OUTAGE_S)
    testbed.local.restore(HOME, AWAY)


async def _drain_home(testbed: RegionsTestbed) -> None:
    await testbed.drain(HOME)
    await asyncio.sleep(OUTAGE_S)
    await testbed.restore(HOME)


FAULTS: Mapping[str, Fault] = {
    NO_FAULT: lambda _: asyncio.sleep(OUTAGE_S),
    f"{AWAY} killed": lambda testbed: _kill_region(testbed, AWAY),
    "link cut": _cut_link,
    f"auth of {HOME} killed": lambda testbed: _kill_auth(testbed, HOME),
    f"auth of {AWAY} killed": lambda testbed: _kill_auth(testbed, AWAY),
    f"{HOME} drained": _drain_home,
    f"{HOME} killed": lambda testbed: _kill_region(testbed, HOME),
}


def void_reason(outcomes: Counter[str], control: ResidencyFindings) -> str:
    """`control`: what the same records have of the tenant that allows every region."""
    if not outcomes[REGION_NOT_ALLOWED]:
        return "no prompt was refused at the proxy of the other region"
    is_found = control.charged and control.ran and control.away
    return "" if is_found else "a record has no request of the tenant that allows every region"


def residency_lines(
    outcomes: Counter[str], findings: ResidencyFindings, control: ResidencyFindings, injected: Mapping[str, int]
) -> list[CardLine]:
    return [
        reported("prompts of the tenant that allows one region", outcomes.total()),
        at_least("of them answered", outcomes[OK], 1),
        reported("of them refused at the proxy of the other region", outcomes[REGION_NOT_ALLOWED]),
        reported("faults", sum(count for name, count in injected.items() if name != NO_FAULT)),
        exactly("prompts of the tenant in the ledger of the other region", findings.charged, 0),
        reported("requests of the other tenant there", control.charged),
        exactly("prompts of the tenant that ended at edges of the other region", findings.ran, 0),
        reported("requests of the other tenant that ended there", control.ran),
        exactly("prompts of the tenant that the ledger of its region says were served elsewhere", findings.away, 0),
        reported("requests of the other tenant that it says were served elsewhere", control.away),
        reported("requests of the tenant that edges of the other region refused", findings.refused),
    ]
