"""Clients leave at once, at any state and by any door: the engine lets go at its next step, and nothing is left."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_most, exactly, percentile, reported
from penstock.proofs.checks.cpu_wait import mesh_cpu_wait
from penstock.proofs.checks.leaks import growth_since, take_baseline
from penstock.proofs.lines import residue_lines
from penstock.proofs.testbed.cancelling_clients import TRANSPORTS, CancelledClient
from penstock.proofs.testbed.client_process import (
    CancelReport,
    CancelRound,
    ClientProcess,
    ClientProcessConfig,
    open_client_process,
)
from penstock.proofs.testbed.logs import read_events, requests_by_ticket
from penstock.proofs.testbed.testbed import Testbed, open_testbed

# Fewer slots than the larger crowd, so that some leave while they wait; small steps, so that a prompt takes several.
SETTINGS = (
    "PENSTOCK_WORKER_SLOTS=24",
    "PENSTOCK_WORKER_TOKEN_BUDGET=64",
    "PENSTOCK_WORKER_SIM_BASE_S=0.02",
)
ARRIVAL_PERIOD_S = 1.5  # s, over which the clients of a crowd come, so that they leave at different states
MAX_STEPS_TO_CANCEL = 1  # that which runs when the engine is told; it begins the next without the request
ROUND_TIMEOUT_S = 60.0  # s for a crowd to come, leave and be gone


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelPattern:
    """A way in which a crowd leaves."""

    name: str
    clients: int
    cancel_period_s: float = 0.0  # s, over which they leave, each at a moment of its own; 0: all at once
    max_p99_ms: float | None = None  # ms, P99 from client to engine

    def reported_line(self, label: str, measured: float) -> CardLine:
        return reported(f"{self.name}: {label}", 1000 * measured, "ms")

    def judged_line(self, label: str, measured: float) -> CardLine:
        if self.max_p99_ms is None:
            return self.reported_line(label, measured)
        return at_most(f"{self.name}: {label}", 1000 * measured, self.max_p99_ms, "ms")


# Users leave one by one; a proxy that dies or a job that is stopped takes all of its requests along.
PATTERNS = (
    CancelPattern(name="of 32 streams", clients=32, cancel_period_s=1.0, max_p99_ms=10),
    CancelPattern(name="32 at once", clients=32),
    CancelPattern(name="128 at once", clients=128, max_p99_ms=50),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOptions:
    cancels: int = 960
    tokens: int = 400  # of an answer, at most; half of them are more than anybody stays for
    seed: int = 0


async def cancel(options: CancelOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    reports: dict[CancelPattern, list[CancelReport]] = {each: [] for each in PATTERNS}
    async with open_testbed(mesh, console, settings=SETTINGS) as stage:
        async with _open_client_processes(stage, options) as doors:
            await _run_round(doors, PATTERNS[-1], "warm")
        await stage.residue()
        before = await take_baseline(stage)
        began = mesh_cpu_wait(stage)
        async with _open_client_processes(stage, options) as doors:
            done = 0
            for number, parting in enumerate(_pattern_sequence(options.cancels)):
                stage.report_progress(f"{done:,} of {options.cancels:,} cancelled, {parting.name} now")
                async with asyncio.timeout(ROUND_TIMEOUT_S):
                    reports[parting] += await _run_round(doors, parting, f"crowd-{number}")
                done += parting.clients
        cores = mesh_cpu_wait(stage).ratio_line(began)
        residue = await stage.residue()
        more, opened = await growth_since(stage, before)
        folder = stage.mesh.folder
    card = _card_of(reports, CancelRecords.read(folder), residue)
    card.lines.append(cores)
    card.lines.append(exactly("credits, slots, streams, tasks, descriptors grown", len(more), 0))
    card.notes += [*(f"{name} +{by:g}" for name, by in more.items()), *opened]
    return card


def _pattern_sequence(cancels: int) -> Iterator[CancelPattern]:
    offered = 0
    for parting in itertools.cycle(PATTERNS):
        if offered >= cancels:
            return
        offered += parting.clients
        yield parting


@asynccontextmanager
async def _open_client_processes(
    testbed: Testbed, options: CancelOptions
) -> AsyncIterator[Mapping[str, ClientProcess]]:
    """A process of clients for each door."""
    edges = testbed.mesh.plan.processes_of("edge")
    addresses, fronts = [each.address for each in edges], [each.http for each in edges]
    place = ClientProcessConfig(
        grpc_addresses=addresses,
        http_addresses=fronts,
        api_key=testbed.mesh.api_key,
        max_output_tokens=options.tokens,
        seed=options.seed,
    )
    async with AsyncExitStack() as stack:
        yield {door: await stack.enter_async_context(open_client_process(place)) for door in TRANSPORTS}


async def _run_round(processes: Mapping[str, ClientProcess], pattern: CancelPattern, name: str) -> list[CancelReport]:
    async with asyncio.TaskGroup() as group:
        for number, (door, crowd) in enumerate(processes.items()):
            share = len(range(number, pattern.clients, len(processes)))
            call = CancelRound(
                name=f"{name}-{door}",
                transport=door,
                clients=share,
                arrival_period_s=ARRIVAL_PERIOD_S,
                cancel_period_s=pattern.cancel_period_s,
            )
            group.create_task(crowd.start_round(call))
    return await asyncio.gather(*(crowd.cancel_all() for crowd in processes.values()))


@dataclass(frozen=True, slots=True)
class CancelRecords:
    """What processes said of requests whose clients left, by request."""

    runs: Mapping[str, dict[str, Any]]  # workers, of those that the engine had
    edge_cancelled_at: Mapping[str, float]  # edges: when they heard that the client had left, in Unix s

    @classmethod
    def read(cls, folder: Path) -> "CancelRecords":
        requests = requests_by_ticket(folder)
        ended = (each for each in read_events(folder, "worker", "run_ended") if "stop_requested_at" in each)
        done = (each for each in read_events(folder, "edge", "ticket_done") if each["cancelled_at"])
        return cls(
            {requests[each["ticket_id"]]: each for each in ended},
            {each["request_id"]: each["cancelled_at"] for each in done},
        )


def _card_of(
    reports: Mapping[CancelPattern, Sequence[CancelReport]], records: CancelRecords, residue: dict[str, float]
) -> ProofCard:
    crowds = {parting: [each for report in found for each in report.clients] for parting, found in reports.items()}
    leavers = [each for crowd in crowds.values() for each in crowd if each.was_active]
    runs = [records.runs[each.request_id] for each in leavers if each.request_id in records.runs]
    failures = [each.failure_text for crowd in crowds.values() for each in crowd if each.failure_text]
    late = [each for found in reports.values() for report in found for each in report.timer_lags_s]
    card = ProofCard(proof="cancel", void_reason=_void_reason(crowds, len(runs)))
    card.lines += [
        reported("clients that left", len(leavers)),
        reported("of them while the engine had them", len(runs)),
    ]
    card.lines.append(exactly("client-visible failures before", len(failures), 0))
    card.lines.append(
        reported("P99 by which a timer of clients that only came was late", 1000 * percentile(late, 0.99), "ms")
    )
    for parting, crowd in crowds.items():
        card.lines += _latency_lines(parting, [each for each in crowd if each.request_id in records.runs], records)
    card.lines += [
        reported("let go while not a token was made", sum(not each["output_tokens"] for each in runs)),
        reported(
            "P99 until the engine had let go",
            1000 * percentile([each["engine_cancel_latency_s"] for each in runs], 0.99),
            "ms",
        ),
        at_most(
            "most steps under way until it let go",
            max((each["engine_cancel_latency_steps"] for each in runs), default=0),
            MAX_STEPS_TO_CANCEL,
        ),
        at_most("most tokens wasted by one", max((each["wasted_tokens"] for each in runs), default=0), 1),
        reported("tokens wasted by all", sum(each["wasted_tokens"] for each in runs)),
        *residue_lines(residue),
    ]
    card.notes += [*failures[:5], *residue]
    return card


def _void_reason(clients: Mapping[CancelPattern, list[CancelledClient]], runs: int) -> str:
    everybody = [each for crowd in clients.values() for each in crowd]
    stayed = sum(each.was_active for each in everybody)
    if stayed < 0.9 * len(everybody):
        return f"only {stayed} of {len(everybody)} requests were under way when their clients left"
    if not runs:
        return "no worker has told of a run that was cancelled"
    return ""


def _latency_lines(
    pattern: CancelPattern, clients: Sequence[CancelledClient], records: CancelRecords
) -> list[CardLine]:
    """Where the time went from a client's leaving to the word to the engine; each stretch by itself."""
    asked = {each: records.runs[each.request_id]["stop_requested_at"] for each in clients}
    waits = [asked[each] - each.cancelled_at for each in clients]
    edge = [each for each in clients if each.request_id in records.edge_cancelled_at]
    stretches = {
        "within the client": [each.cancel_sent_at - each.cancelled_at for each in clients],
        "client to edge": [records.edge_cancelled_at[each.request_id] - each.cancelled_at for each in edge],
        "edge to engine": [asked[each] - records.edge_cancelled_at[each.request_id] for each in edge],
        **{
            f"by {door}": [asked[each] - each.cancelled_at for each in clients if each.transport == door]
            for door in TRANSPORTS
        },
    }
    return [
        *(pattern.reported_line(f"P99 {stretch}", percentile(took, 0.99)) for stretch, took in stretches.items()),
        pattern.reported_line("P50 client to engine", percentile(waits, 0.5)),
        pattern.judged_line("P99 client to engine", percentile(waits, 0.99)),
    ]
