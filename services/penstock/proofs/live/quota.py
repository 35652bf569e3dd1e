"""Replicas of auth and edges are killed, and connections to PostgreSQL cut, under load: limits and ledger stay exact.

Several tenants, some with limits, send requests at once, of which clients cancel a fifth. The ledger is compared with
the tokens that the engines counted and that the clients received, and what was let through with every limit.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from penstock.bench.drivers.grpc import GrpcDriver
from penstock.bench.load import BenchRequest
from penstock.bench.statistics import quantile
from penstock.bench.transcript import CANCELLED, OK, TokenTranscript, check_transcripts
from penstock.client import Client
from penstock.local_mesh.operator_channels import operator_channel
from penstock.local_mesh.plan import MeshOptions
from penstock.proofs.card import (
    CardLine,
    ProofCard,
    at_most,
    charge_lines,
    exactly,
    fault_summary,
    finding_lines,
    reported,
)
from penstock.proofs.checks.injected_faults import InjectedFault, void_reason
from penstock.proofs.checks.ledger import (
    LOST_OUTCOME,
    ChargeFindings,
    LedgerCharge,
    check_charges,
    requests_of_several_tickets,
)
from penstock.proofs.checks.quota import (
    EngineCount,
    TenantLimits,
    check_engine_counts,
    check_limits,
    engine_lines,
    limit_lines,
)
from penstock.proofs.testbed.clients.load import ClosedLoopLoad, Loads, run_baseline
from penstock.proofs.testbed.faults.fault_run import FaultRun, add_residue, fault_run
from penstock.proofs.testbed.faults.kills import kill_and_restart, kill_times, wait_settled
from penstock.proofs.testbed.logs import (
    read_events,
    read_ledger,
    read_ledger_entries,
    requests_by_ticket,
    unix_time,
)
from penstock.proofs.testbed.testbed import Testbed, open_testbed
from penstock.v1.admin_pb2 import CreateKeyRequest, PutTenantRequest, Tenant
from penstock.v1.admin_pb2_grpc import AdminStub

SETTINGS = (
    "PENSTOCK_WORKER_SLOTS=96",
    "PENSTOCK_WORKER_SIM_BASE_S=0.1",  # 10 tokens/s for each stream: two cores carry 256 streams and the restarts
)
AUTHS = 3
TENANTS = 16  # on about as many partitions
CATALOG_SIZE = 24
CANCELLED_SHARE = 0.2
MAX_TAKEOVER_S = 2.0
SETTLING_S = (
    0.5  # s after the end of a request in which its settlement reaches auth; those of cancelled ones are bundled
)
LOGGING_S = 0.5  # s between the loss of a stream and its log line, which may follow that of a ticket that it ended
PAUSE_AFTER_REJECTION_S = 2.0  # s; clients of tenants with limits do not send without end
AUTH_LOST = "AUTH_LOST"
OVER_LIMIT = "QUOTA_EXCEEDED"  # what clients of tenants with limits may receive
CUT = "connection cut"
# Every fourth tenant has limits, each below what its streams ask for.
LIMITS = (
    TenantLimits(tokens_per_minute=6_000),
    TenantLimits(requests_per_minute=40),
    TenantLimits(concurrent_requests=4),
    TenantLimits(tokens_per_minute=9_000, requests_per_minute=60, concurrent_requests=8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    streams: int = 256
    kills: int = (
        60  # of a random replica of auth or edge; each fourth is a cut of a replica's connections to PostgreSQL
    )
    every: float = 3.0  # s
    tokens: int = 60  # of an answer, at most
    seed: int = 0


async def quota(options: QuotaOptions, mesh: MeshOptions, console: Console) -> ProofCard:
    own = replace(mesh, auths=max(AUTHS, mesh.auths), edges=max(2, mesh.edges), store="postgres")
    limits = {f"tenant-{number}": _limits_of(number) for number in range(TENANTS)}
    async with open_testbed(own, console, settings=SETTINGS) as testbed:
        testbed.report_progress("answering every request without a fault")
        requests, baseline = await run_baseline(testbed.client, CATALOG_SIZE, options.tokens, options.seed)
        keys = await _create_tenants(testbed, limits)
        async with _load_of_tenants(testbed, keys, _with_cancels(requests, options.seed), options) as load:
            async with fault_run(testbed, load, baseline, options.streams, options.kills) as run:
                await _disturb(run, options)
            residue = await testbed.residue()
    return _card_of(run, {name: each for name, each in limits.items() if each != TenantLimits()}, residue, options)


def _limits_of(number: int) -> TenantLimits:
    return LIMITS[number // 4 % len(LIMITS)] if number % 4 == 0 else TenantLimits()


def _with_cancels(requests: Sequence[BenchRequest], seed: int) -> list[BenchRequest]:
    """Return each request several times; clients cancel a fifth of them, at any token."""
    rng, copies = random.Random(seed), round(1 / CANCELLED_SHARE)
    cancelled = [replace(each, cancel_after=rng.randint(1, 12)) for each in requests]
    return [*list(requests) * (copies - 1), *cancelled]


async def _create_tenants(testbed: Testbed, limits: Mapping[str, TenantLimits]) -> dict[str, str]:
    """Create the tenants. Return a key of each, which all replicas of auth know."""
    auths = testbed.mesh.plan.processes_of("auth")
    async with operator_channel(auths[0].admin_address) as to_auth:
        stub, keys = AdminStub(to_auth), {}
        for tenant_id, each in limits.items():
            tenant = Tenant(
                tenant_id=tenant_id,
                requests_per_minute=each.requests_per_minute,
                tokens_per_minute=each.tokens_per_minute,
                concurrent_requests=each.concurrent_requests,
            )
            await stub.PutTenant(PutTenantRequest(tenant=tenant))
            keys[tenant_id] = (await stub.CreateKey(CreateKeyRequest(tenant_id=tenant_id))).secret
    async with asyncio.timeout(10):
        while await testbed.sum_figure("auth", "keys") < len(auths) * (len(keys) + 1):  # noqa: ASYNC110  # other processes
            await asyncio.sleep(0.1)
    return keys


@asynccontextmanager
async def _load_of_tenants(
    testbed: Testbed, keys: Mapping[str, str], requests: Sequence[BenchRequest], options: QuotaOptions
) -> AsyncIterator[ClosedLoopLoad]:
    """Yield the load of all tenants, whose clients each know the key of one."""
    edges = [each.address for each in testbed.mesh.plan.processes_of("edge")]
    async with AsyncExitStack() as stack:
        loads = []
        for number, key in enumerate(keys.values()):
            client = await stack.enter_async_context(Client(*edges, api_key=key))
            streams = len(range(number, options.streams, len(keys)))
            driver = GrpcDriver([client], time.time)
            seed, pause = options.seed + number, PAUSE_AFTER_REJECTION_S
            loads.append(ClosedLoopLoad(driver, requests, streams, seed, pause_after_failure=pause))
        yield Loads(loads)


async def _disturb(run: FaultRun, options: QuotaOptions) -> None:
    rng = random.Random(options.seed)
    kinds = _kinds(rng)
    async for _ in kill_times(run, options.every):
        tier = next(kinds)
        children = [each for each in run.testbed.mesh.processes.children if each.spec.tier == tier.removesuffix(CUT)]
        victim = rng.choice(children)
        if tier.endswith(CUT):
            await _cut_connections(run, victim.spec.name)
        else:
            await kill_and_restart(run, victim)


def _kinds(rng: random.Random) -> Iterator[str]:
    while True:
        yield from rng.sample(("auth", "auth", "edge", f"auth{CUT}"), 4)


async def _cut_connections(run: FaultRun, name: str) -> None:
    """End the sessions of one replica at the server."""
    import psycopg  # a package of auth, which other proofs do not need

    postgres = run.testbed.mesh.postgres
    assert postgres is not None
    instance = await run.testbed.instance_id(run.testbed.mesh.processes.named(name).spec.admin_address)
    with run.injecting(name, CUT) as fault:
        async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as connection:
            cut = await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE strpos(application_name, %s) > 0",
                (instance,),
            )
            fault.has_taken_effect = bool(await cut.fetchall())
        await wait_settled(run.testbed)


def _card_of(
    run: FaultRun, limits: Mapping[str, TenantLimits], residue: dict[str, float], options: QuotaOptions
) -> ProofCard:
    transcripts = run.load.transcripts
    complete = [each for each in transcripts if each.outcome not in (CANCELLED, OVER_LIMIT)]
    findings = check_transcripts(complete, run.baseline)
    card = ProofCard(proof="quota", void_reason=void_reason(run.faults, options.kills, options.streams))
    card.lines += finding_lines(findings)
    card.lines += outcome_lines(transcripts)
    ended, unsettled = ended_tickets(run.folder, run.faults)
    answers = [each for each in complete if each.outcome == OK]
    card.lines += answer_charge_lines(answers, read_ledger(run.folder), requests_by_ticket(run.folder), unsettled)
    entries = read_ledger_entries(run.folder)
    deferred = {each["reservation_id"] for each in read_events(run.folder, "auth", "deferred_reservation_recorded")}
    card.lines += limit_lines(check_limits(entries, limits, deferred))
    counted = check_engine_counts(entries, engine_counts(run.folder), ended - unsettled)
    card.lines += engine_lines(counted)
    card.lines += takeover_lines(run.folder, run.faults)
    add_residue(card, residue)
    card.notes += [*findings.failure_reasons[:10], *counted.examples[:10], fault_summary(run.faults)]
    return card


def outcome_lines(transcripts: Sequence[TokenTranscript]) -> list[CardLine]:
    outcomes = Counter(each.outcome for each in transcripts)
    return [
        reported("answers", outcomes[OK]),
        reported("cancelled by their clients", outcomes[CANCELLED]),
        reported("rejected by a limit", outcomes[OVER_LIMIT]),
        exactly("refused with AUTH_LOST", outcomes[AUTH_LOST], 0),
    ]


def engine_counts(folder: Path) -> dict[str, EngineCount]:
    counts: dict[str, EngineCount] = defaultdict(lambda: EngineCount(0))
    workers: dict[str, set[str]] = defaultdict(set)
    for each in read_events(folder, "worker", "run_ended"):
        ticket_id, count = each["ticket_id"], counts[each["ticket_id"]]
        is_stopped = count.is_stopped or "stop_requested_at" in each
        counts[ticket_id] = EngineCount(count.made + each["output_tokens"], is_stopped)
        workers[ticket_id].add(each["instance_id"])
    cut_off = cut_off_tickets(folder, workers)
    return {ticket_id: count._replace(is_cut_off=ticket_id in cut_off) for ticket_id, count in counts.items()}


def cut_off_tickets(folder: Path, workers: Mapping[str, Collection[str]]) -> set[str]:
    """Return the tickets whose edge lost its stream to one of their `workers` before it ended them."""
    lost_at: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in read_events(folder, "edge", "link_down"):
        lost_at[each["instance_id"], each["peer"]].append(unix_time(each))
    found = set()
    for each in read_events(folder, "edge", "ticket_done"):
        ticket_id, ended_at = each["ticket_id"], unix_time(each)
        of_ticket = (
            at for worker in workers.get(ticket_id, ()) for at in lost_at.get((each["instance_id"], worker), ())
        )
        if any(ended_at - each["total_s"] <= at <= ended_at + LOGGING_S for at in of_ticket):
            found.add(ticket_id)
    return found


def ended_tickets(folder: Path, faults: Sequence[InjectedFault]) -> tuple[set[str], set[str]]:
    """Return the tickets that edges have ended, and those of them whose settlement may have died with the edge."""
    deaths = [(fault.name, fault.injected_at) for fault in faults if fault.tier == "edge"]
    ended, unsettled = set(), set()
    for each in read_events(folder, "edge", "ticket_done"):
        ended.add(each["ticket_id"])
        if any(name == each["process"] and abs(at - unix_time(each)) < SETTLING_S for name, at in deaths):
            unsettled.add(each["ticket_id"])
    return ended, unsettled


def answer_charge_lines(
    transcripts: Sequence[TokenTranscript],
    rows: Sequence[LedgerCharge],
    by_ticket: Mapping[str, str],
    unsettled: Collection[str],
) -> list[CardLine]:
    """The charges of complete answers, and the tokens that their clients received. `by_ticket`: ids of requests.

    A client whose connection is lost leaves an edge that may live, and that goes on until it detects the loss. What the
    engine makes until then is charged as computed, so that these requests are judged apart. So are those of which a
    ticket is `unsettled`: if its edge died before it settled, auth settles it as lost, which charges nothing.
    """
    departed = requests_of_several_tickets(rows, by_ticket)
    died = {by_ticket[each] for each in unsettled if each in by_ticket} - departed
    groups = (
        [each for each in transcripts if each.request_id not in departed | died],
        [each for each in transcripts if each.request_id in departed],
        [each for each in transcripts if each.request_id in died],
    )
    stayed, left, last = (check_charges(group, _rows_of(group, rows, by_ticket), by_ticket) for group in groups)
    explained = [each for each in rows if each.outcome != LOST_OUTCOME or each.ticket_id in unsettled]
    in_ledger = {by_ticket.get(each.ticket_id) for each in explained}
    without_row = sum(each.request_id not in in_ledger for each in groups[2])
    return [
        *charge_lines(stayed),
        *departure_lines(left, len(groups[1])),
        *last_answer_lines(last, len(groups[2]), without_row),
    ]


def _rows_of(
    transcripts: Sequence[TokenTranscript], rows: Sequence[LedgerCharge], request_by_ticket: Mapping[str, str]
) -> list[LedgerCharge]:
    requests = {each.request_id for each in transcripts}
    return [each for each in rows if request_by_ticket.get(each.ticket_id) in requests]


def departure_lines(left: ChargeFindings, requests: int) -> list[CardLine]:
    return [
        reported("requests whose client lost its connection to an edge that lived", requests),
        reported("of them: tokens made for a client that had left, charged", left.overcharged_tokens),
        exactly("of them: tokens seen and not charged", left.undercharged_tokens, 0),
        exactly("of them: prompts charged twice", left.double_charged_prompts, 0),
        exactly("of them: prompts not charged", left.uncharged_prompts, 0),
        exactly("of them: tickets charged twice", left.double_charged_tickets, 0),
    ]


def last_answer_lines(last: ChargeFindings, requests: int, without_row: int) -> list[CardLine]:
    return [
        reported(f"requests that ended within {SETTLING_S} s of the death of their edge", requests),
        reported("of them: settled as lost, which charges nothing", last.uncharged_prompts),
        exactly("of them: neither charged nor settled as lost", without_row, 0),
        exactly("of them: tokens charged beyond those seen", last.overcharged_tokens, 0),
        exactly("of them: prompts charged twice", last.double_charged_prompts, 0),
        exactly("of them: tickets charged twice", last.double_charged_tickets, 0),
    ]


def takeover_lines(folder: Path, faults: Sequence[InjectedFault]) -> list[CardLine]:
    """The time from the death of a replica until others had all of its partitions."""
    taken = sorted(unix_time(each) for each in read_events(folder, "auth", "partitions_taken") if each["former"])
    times = []
    for fault in faults:
        if fault.tier == "auth" and fault.kind != CUT:
            after = [at for at in taken if fault.injected_at <= at <= fault.injected_at + 2 * MAX_TAKEOVER_S]
            times.append(max(after, default=fault.injected_at + 2 * MAX_TAKEOVER_S) - fault.injected_at)
    return [
        reported("deaths of a replica of auth", len(times)),
        reported("P50 time until others had its partitions", quantile(times, 0.5), "s"),
        at_most("P99 time until others had its partitions", quantile(times, 0.99), MAX_TAKEOVER_S, "s"),
    ]
