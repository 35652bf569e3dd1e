"""Clients cancel at any state and over any transport: the engine stops at its next step, and no resource leaks."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.bench.cpu_wait import CpuUse, cpu_use_of
from penstock.bench.statistics import quantile
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, reported
from penstock.proofs.checks.leaks import growth_since, take_baseline
from penstock.proofs.testbed.clients.client_process import (
    TRANSPORTS,
    CancelledClient,
    CancelReport,
    CancelRound,
    ClientProcess,
    ClientProcessConfig,
    open_client_process,
)
from penstock.proofs.testbed.faults.fault_run import add_residue
from penstock.proofs.testbed.logs import read_events, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, open_testbed

# Fewer slots than the largest round has clients, so that some cancel while they wait; and a small token budget, so
# that a prompt takes several steps.
SETTINGS = (
    "PENSTOCK_WORKER_SLOTS=24",
    "PENSTOCK_WORKER_TOKEN_BUDGET=64",
    "PENSTOCK_WORKER_SIM_BASE_S=0.02",
)
ARRIVAL_PERIOD_S = 1.5  # s, over which the clients of a round arrive, so that they cancel at different states
MAX_STEPS_TO_CANCEL = 1  # the step that runs when the engine receives the cancel; the next one omits the request
ROUND_TIMEOUT_S = 60.0  # s


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelPattern:
    """How the clients of a round cancel."""

    name: str
    clients: int
    cancel_period_s: float = 0.0  # s, over which they cancel, each at a random time; 0: all at once
    max_p99_ms: float | None = None  # ms from client to engine; None: reported, not judged

    def reported_line(self, label: str, measured: float) -> CardLine:
        return reported(f"{self.name}: {label}", 1000 * measured, "ms")

    def judged_line(self, label: str, measured: float) -> CardLine:
        if self.max_p99_ms is None:
            return self.reported_line(label, measured)
        return at_most(f"{self.name}: {label}", 1000 * measured, self.max_p99_ms, "ms")


# Users cancel one by one; a proxy that dies or a job that is stopped cancels all of its requests at once.
PATTERNS = (
    CancelPattern(name="of 32 streams", clients=32, cancel_period_s=1.0, max_p99_ms=10),
    CancelPattern(name="32 at once", clients=32),
    CancelPattern(name="128 at once", clients=128, max_p99_ms=50),
)
Reports = Mapping[CancelPattern, list[CancelReport]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOptions:
    cancels: int = 960
    tokens: int = 400  # of an answer, at most; half of this is more than any client reads
    seed: int = 0


async def cancel(options: CancelOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    reports: Reports = {pattern: [] for pattern in PATTERNS}
    async with open_testbed(mesh, console, settings=SETTINGS) as testbed:
        async with _open_client_processes(testbed, options) as processes:
            await _run_round(processes, PATTERNS[-1], "warm-up")
        await testbed.residue()
        baseline, cpu_before = await take_baseline(testbed), _mesh_cpu_use(testbed)
        async with _open_client_processes(testbed, options) as processes:
            done = 0
            for number, pattern in enumerate(_pattern_sequence(options.cancels)):
                testbed.report_progress(f"{done:,} of {options.cancels:,} cancelled, {pattern.name} now")
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    reports[pattern] += await _run_round(processes, pattern, f"round-{number}")
                done += pattern.clients
        cpu_use = _mesh_cpu_use(testbed).since(cpu_before)
        residue = await testbed.residue()
        growth, new_descriptors = await growth_since(testbed, baseline)
    card = _card_of(reports, CancelRecords.read(testbed.mesh.folder))
    add_residue(card, residue)
    card.lines.append(reported("s that processes waited for a core, for each s on one", cpu_use.waited_per_ran))
    card.lines.append(exactly("credits, slots, streams, tasks, descriptors grown", len(growth), 0))
    card.notes += [*(f"{name} +{by:g}" for name, by in growth.items()), *new_descriptors]
    return card


def _mesh_cpu_use(testbed: Testbed) -> CpuUse:
    return cpu_use_of(child.process.pid for child in testbed.mesh.processes.children)


def _pattern_sequence(cancels: int) -> Iterator[CancelPattern]:
    planned = 0
    for pattern in itertools.cycle(PATTERNS):
        if planned >= cancels:
            return
        planned += pattern.clients
        yield pattern


@asynccontextmanager
async def _open_client_processes(
    testbed: Testbed, options: CancelOptions
) -> AsyncIterator[Mapping[str, ClientProcess]]:
    """Open one client process per transport."""
    edges = testbed.mesh.plan.processes_of("edge")
    config = ClientProcessConfig(
        grpc_addresses=[edge.address for edge in edges],
        http_addresses=[edge.http for edge in edges],
        api_key=testbed.mesh.api_key,
        max_output_tokens=options.tokens,
        seed=options.seed,
    )
    async with AsyncExitStack() as stack:
        yield {transport: await stack.enter_async_context(open_client_process(config)) for transport in TRANSPORTS}


async def _run_round(processes: Mapping[str, ClientProcess], pattern: CancelPattern, name: str) -> list[CancelReport]:
    async with asyncio.TaskGroup() as group:
        for number, (transport, process) in enumerate(processes.items()):
            cancel_round = CancelRound(
                name=f"{name}-{transport}",
                transport=transport,
                clients=len(range(number, pattern.clients, len(processes))),
                arrival_period_s=ARRIVAL_PERIOD_S,
                cancel_period_s=pattern.cancel_period_s,
            )
            group.create_task(process.start_round(cancel_round))
    return await asyncio.gather(*(process.cancel_all() for process in processes.values()))


@dataclass(frozen=True, slots=True)
class CancelRecords:
    """What the processes logged about cancelled requests, by request id."""

    runs: Mapping[str, dict[str, Any]]  # `run_ended` of the workers, for requests that the engine had
    edge_cancelled_at: Mapping[str, float]  # Unix s at which the edge detected the cancel

    @classmethod
    def read(cls, folder: Path) -> "CancelRecords":
        requests = requests_by_ticket(folder)
        ended = (each for each in read_events(folder, "worker", "run_ended") if "stop_requested_at" in each)
        done = (each for each in read_events(folder, "edge", "ticket_done") if each["cancelled_at"])
        return cls(
            {requests[each["ticket_id"]]: each for each in ended},
            {each["request_id"]: each["cancelled_at"] for each in done},
        )


def _card_of(reports: Reports, records: CancelRecords) -> ProofCard:
    clients = {pattern: [each for report in found for each in report.clients] for pattern, found in reports.items()}
    every = [each for found in clients.values() for each in found]
    active = [each for each in every if each.was_active]
    runs = [records.runs[each.request_id] for each in active if each.request_id in records.runs]
    failures = [each.failure_text for each in every if each.failure_text]
    lags = [lag for found in reports.values() for report in found for lag in report.timer_lags_s]
    card = ProofCard(proof="cancel", void_reason=_void_reason(len(active), len(every), len(runs)))
    card.lines += [
        reported("clients that cancelled", len(active)),
        reported("of them while the engine ran their request", len(runs)),
        exactly("client-visible failures before", len(failures), 0),
        reported("P99 lag of a timer in the client processes", 1000 * quantile(lags, 0.99), "ms"),
    ]
    for pattern, found in clients.items():
        card.lines += _latency_lines(pattern, [each for each in found if each.request_id in records.runs], records)
    card.lines += _engine_lines(runs)
    card.notes += failures[:5]
    return card


def _void_reason(active: int, clients: int, runs: int) -> str:
    if active < 0.9 * clients:
        return f"only {active} of {clients} requests were active when their clients cancelled"
    return "" if runs else "no worker logged a cancelled run"


def _engine_lines(runs: Sequence[Mapping[str, Any]]) -> list[CardLine]:
    latencies, steps, wasted = (
        [run[key] for run in runs]
        for key in ("engine_cancel_latency_s", "engine_cancel_latency_steps", "wasted_tokens")
    )
    return [
        reported("cancelled before their first token", sum(not run["output_tokens"] for run in runs)),
        reported("P99 until the engine had stopped", 1000 * quantile(latencies, 0.99), "ms"),
        at_most("most steps until the engine had stopped", max(steps, default=0), MAX_STEPS_TO_CANCEL),
        at_most("most tokens wasted by one request", max(wasted, default=0), 1),
        reported("tokens wasted by all", sum(wasted)),
    ]


def _latency_lines(
    pattern: CancelPattern, clients: Sequence[CancelledClient], records: CancelRecords
) -> list[CardLine]:
    """The time from the client's cancel to its arrival at the engine, and each section of the way."""
    at_engine = {each: records.runs[each.request_id]["stop_requested_at"] for each in clients}
    waits = [at_engine[each] - each.cancelled_at for each in clients]
    at_edge = {
        each: records.edge_cancelled_at[each.request_id]
        for each in clients
        if each.request_id in records.edge_cancelled_at
    }
    sections = {
        "within the client": [each.cancel_sent_at - each.cancelled_at for each in clients],
        "client to edge": [at - each.cancelled_at for each, at in at_edge.items()],
        "edge to engine": [at_engine[each] - at for each, at in at_edge.items()],
        **{
            f"by {transport}": [at_engine[each] - each.cancelled_at for each in clients if each.transport == transport]
            for transport in TRANSPORTS
        },
    }
    return [
        *(pattern.reported_line(f"P99 {section}", quantile(times, 0.99)) for section, times in sections.items()),
        pattern.reported_line("P50 client to engine", quantile(waits, 0.5)),
        pattern.judged_line("P99 client to engine", quantile(waits, 0.99)),
    ]
