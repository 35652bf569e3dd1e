"""PostgreSQL is away for a minute under load: known callers are served, strangers refused at once, and all is charged.

The server ends the connections of auth and refuses new ones. Edges decide by auth fallback, as while auth is
unreachable.
"""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import grpc
from rich.console import Console

from penstock.bench.statistics import quantile
from penstock.bench.transcript import OK, TokenTranscript
from penstock.chassis.channels import channel
from penstock.chassis.errors import error_from_rpc
from penstock.local_mesh.operator_channels import operator_channel
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import CardLine, ProofCard, at_least, at_most, exactly, fault_summary, reported
from penstock.proofs.checks.injected_faults import InjectedFault
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, run_baseline
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.faults.outages import postgres_away
from penstock.proofs.testbed.testbed import POLL_INTERVAL_S, REST_TIMEOUT_S, Testbed, open_testbed
from penstock.v1.admin_pb2 import CreateKeyRequest
from penstock.v1.admin_pb2_grpc import AdminStub
from penstock.v1.inference_pb2 import GenerateRequest
from penstock.v1.inference_pb2_grpc import InferenceStub

SETTINGS = ("PENSTOCK_WORKER_SIM_BASE_S=0.025",)
AUTHS = 3
CATALOG_SIZE = 16
SETTLING_S = 5.0  # s of load before the calm load is measured
STRANGER_INTERVAL_S = 0.5  # s between two strangers
STRANGERS = 400  # keys that no edge has admitted
MIN_GOODPUT_SHARE = 95.0  # %
MAX_REFUSAL_MS = 10.0  # ms


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions:
    seconds: float = 60.0  # for which the database is away
    streams: int = 16
    tokens: int = 40  # of an answer, at most
    seed: int = 0


@dataclass(slots=True)
class Refusals:
    """Answers to strangers while the database was away."""

    times_s: list[float] = field(default_factory=list)
    others: list[str] = field(default_factory=list)  # answers other than AUTH_LOST


async def database(options: DatabaseOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    own = replace(mesh, auths=max(AUTHS, mesh.auths), store="postgres")
    async with open_testbed(own, console, settings=SETTINGS) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        strangers = await _create_keys(testbed, min(STRANGERS, round(options.seconds / STRANGER_INTERVAL_S) + 1))
        load = ClosedLoopLoad(testbed.driver, requests, options.streams, options.seed)
        async with fault_run(testbed, load, baseline, options.streams, 1) as run:
            await _wait(run, "the database is there", SETTLING_S)
            calm_from = time.time()
            await _wait(run, "the database is there", options.seconds / 2)
            refusals = await _take_database_away(run, strangers, options.seconds)
        residue = await testbed.residue()
    card = run.card("database", run.check_all())
    card.lines += away_lines(load.transcripts, run.faults[0], calm_from, options.seconds)
    card.lines += refusal_lines(refusals)
    card.lines += run.all_charge_lines()
    add_residue(card, residue)
    card.notes += [fault_summary(run.faults), *refusals.others[:5]]
    return card


async def _create_keys(testbed: Testbed, count: int) -> list[str]:
    auths = testbed.mesh.plan.processes_of("auth")
    before = await testbed.sum_figure("auth", "keys")
    async with operator_channel(auths[0].admin_address) as to_auth:
        stub = AdminStub(to_auth)
        keys = [(await stub.CreateKey(CreateKeyRequest(tenant_id="default"))).secret for _ in range(count)]
    async with asyncio.timeout(10):
        while await testbed.sum_figure("auth", "keys") < before + len(auths) * count:  # noqa: ASYNC110  # other processes
            await asyncio.sleep(POLL_INTERVAL_S)
    return keys


async def _wait(run: FaultRun, what: str, seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        run.report_progress(what)
        await asyncio.sleep(POLL_INTERVAL_S)


async def _take_database_away(run: FaultRun, strangers: Sequence[str], seconds: float) -> Refusals:
    postgres = run.testbed.mesh.postgres
    assert postgres is not None
    refusals = Refusals()
    with run.injecting("postgres", "away") as fault:
        away_until = time.monotonic() + seconds
        async with postgres_away(postgres):
            await _until_unavailable(run.testbed)
            fault.has_taken_effect = True
            asking = asyncio.create_task(_ask_as_strangers(run.testbed, strangers, refusals))
            await _wait(run, "the database is away", away_until - time.monotonic())
            asking.cancel()
            fault.has_taken_effect = not await run.testbed.sum_figure("auth", "store_available")
        async with asyncio.timeout(REST_TIMEOUT_S):
            auths = len(run.testbed.mesh.plan.processes_of("auth"))
            while await run.testbed.sum_figure("auth", "store_available") < auths:  # noqa: ASYNC110  # other processes
                await asyncio.sleep(POLL_INTERVAL_S)
    return refusals


async def _until_unavailable(testbed: Testbed) -> None:
    async with asyncio.timeout(REST_TIMEOUT_S):
        while await testbed.sum_figure("auth", "store_available"):  # noqa: ASYNC110  # other processes
            await asyncio.sleep(POLL_INTERVAL_S)


async def _ask_as_strangers(testbed: Testbed, keys: Sequence[str], refusals: Refusals) -> None:
    """Send one request for each key, whose caller no edge has admitted."""
    edges = itertools.cycle(testbed.mesh.plan.processes_of("edge"))
    for key, edge in zip(keys, edges, strict=False):
        async with channel(edge.address) as to_edge:
            await to_edge.channel_ready()
            request = GenerateRequest(text="hello", max_output_tokens=1)
            began = time.perf_counter()
            try:
                async for _ in InferenceStub(to_edge).Generate(request, metadata=(("authorization", f"Bearer {key}"),)):
                    pass
                refusals.others.append("a stranger was served")
            except grpc.aio.AioRpcError as error:
                refusals.times_s.append(time.perf_counter() - began)
                reason = error_from_rpc(error).reason
                if reason != "AUTH_LOST":
                    refusals.others.append(reason)
        await asyncio.sleep(STRANGER_INTERVAL_S)


def away_lines(
    transcripts: Sequence[TokenTranscript], fault: InjectedFault, calm_from: float, seconds: float
) -> list[CardLine]:
    """Answers/s while the database was away, and before."""
    done = [each.ended_at for each in transcripts if each.outcome == OK]
    away_until = fault.injected_at + seconds
    calm = sum(calm_from <= at < fault.injected_at for at in done) / max(1e-9, fault.injected_at - calm_from)
    away = sum(fault.injected_at <= at < away_until for at in done) / seconds
    return [
        reported("answers before", calm, "/s"),
        reported("answers while the database was away", away, "/s"),
        at_least("their share", 100 * away / max(1e-9, calm), MIN_GOODPUT_SHARE, "%"),
    ]


def refusal_lines(refusals: Refusals) -> list[CardLine]:
    times_ms = [1_000 * each for each in refusals.times_s]
    return [
        at_least("strangers refused while the database was away", len(times_ms), 1),
        exactly("strangers answered otherwise than with AUTH_LOST", len(refusals.others), 0),
        reported("P50 time until a stranger was refused", quantile(times_ms, 0.5), "ms"),
        at_most("P99 time until a stranger was refused", quantile(times_ms, 0.99), MAX_REFUSAL_MS, "ms"),
    ]
